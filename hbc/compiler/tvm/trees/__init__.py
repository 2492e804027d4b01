"""The kernels of tree ensembles. Importing this package registers them, those of a GPU last: `BACKENDS` names them in this order."""

import importlib
import pkgutil

for _module in sorted(pkgutil.walk_packages(__path__, f"{__name__}."), key=lambda module: ".gpu" in module.name):
    importlib.import_module(_module.name)
