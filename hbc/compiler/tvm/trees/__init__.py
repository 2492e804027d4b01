"""The loop nests of tree ensembles. Importing this package registers them."""

import importlib
import pkgutil

for _module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.ispkg):
    importlib.import_module(f"{__name__}.{_module.name}")
