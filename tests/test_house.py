"""The house rules that a machine can check: import directions, where libraries may be imported, file sizes, registries."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import hbc
from hbc.ir.graph import OPERATORS, Operator
from hbc.ops import import_all
from hbc.parser import registry

ROOT = Path(hbc.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
KNOWN = set(FILES)

MAY_IMPORT = {
    "errors": {"lazy"},
    "arguments": {"errors"},
    "lazy": set(),
    "version": set(),
    "hummingbird": {"errors"},
    "process": set(),
    "cache": set(),
    "linker": set(),
    "ir": {"errors", "lazy"},
    "ops": {"errors", "lazy", "ir"},
    "parser": {"errors", "lazy", "ir", "ops"},
    "optimizer": {"errors", "lazy", "process", "ir", "ops", "compiler.base"},
    "compiler": {"errors", "arguments", "lazy", "process", "cache", "linker", "ir", "ops"},
    "runtime": {"errors", "arguments", "lazy", "process", "version", "cache", "ir", "compiler.base"},
    "tuning": {"errors", "lazy", "process", "cache", "ir", "ops", "compiler.base", "runtime"},
    "kept": {"version", "cache", "ir", "ops", "optimizer.partition", "compiler.base", "runtime"},
    "assembly": {"errors", "ir", "ops", "optimizer", "compiler.base", "runtime"},
    "builder": {
        "errors",
        "lazy",
        "cache",
        "ir",
        "ops",
        "parser.registry",
        "optimizer",
        "compiler.base",
        "runtime",
        "tuning",
        "kept",
        "assembly",
    },
    "loading": {"errors", "arguments", "hummingbird", "process", "compiler.base", "runtime", "builder"},
    "loaded": {"process", "compiler.base", "runtime.model", "loading"},
    "serve": {"errors", "lazy", "process", "version", "cache.store", "ir", "runtime", "loading"},
    "adapters": {"errors", "loading", "serve"},
    "engines": {"errors", "arguments", "lazy", "process", "loaded", "runtime"},
    "mlflow": {"errors", "version", "compiler.base", "runtime", "loading", "serve.examples", "serve.served"},
    "scoring": {"errors", "arguments", "lazy", "process", "version", "runtime.model", "loaded"},
    "api": {
        *("errors", "arguments", "hummingbird", "process"),
        *("ir", "ops", "parser", "compiler.base", "runtime", "tuning", "builder"),
    },
    "cli": {
        "ir.store",
        "errors",
        "api",
        "cache",
        "compiler.base",
        "compiler.tvm.run.folder",
        *("parser.files", "parser.source"),
        "runtime.input.columns",
        "scoring.formats",
        "scoring.job",
        "tuning.race",
        "serve.parent",
        "serve.process",
        "serve.grpc.server",
        "adapters.triton_folder",
        "process",
    },
    "__main__": {"cli"},
    "__init__": {"errors", "version", "hummingbird", "api", "loading", "parser.registry", "runtime.model", "scoring.run"},
}
"""Room (folder or file of hbc/) → the rooms it may import, besides itself."""

HOMES = {
    "tvm": ["compiler/tvm"],
    "tvm_ffi": ["compiler/tvm"],
    "torch": ["compiler/torch"],
    "onnx": ["compiler/onnx", "parser/onnxml", "adapters/triton_folder.py"],
    "onnxruntime": ["compiler/onnx", "parser/onnxml/session.py"],
    "skl2onnx": ["parser/onnxml/others.py"],
    "onnxmltools": ["parser/onnxml/others.py"],
    "sklearn": ["parser/sklearn", "runtime/estimator.py"],
    "joblib": ["parser/sklearn"],
    "scipy": ["parser/sklearn", "runtime/sparse.py"],
    "catboost": ["parser/catboost.py"],
    "lightgbm": ["parser/lightgbm"],
    "xgboost": ["parser/xgboost"],
    "narwhals": ["runtime/input", "runtime/frame_output.py"],
    "typer": ["cli"],
    "rich": ["cli"],
    "pandas": ["cli/data.py", "mlflow.py", "engines/dask.py"],
    "fsspec": ["scoring/places.py"],
    "pyarrow": ["scoring", "runtime/arrow.py", "runtime/input/arrow_batch.py", "engines"],
    "polars": ["engines/polars.py"],
    "starlette": ["serve/http.py", "adapters/ray_serve.py"],
    "uvicorn": ["serve/protocol.py", "serve/process.py"],
    "httptools": ["serve/protocol.py"],
    "simdjson": ["serve/numbers.py"],
    "orjson": ["serve/documents.py", "serve/logs.py"],
    "grpc": ["serve/grpc/server.py"],
    "google": ["serve/grpc/messages.py"],
    "mlserver": ["adapters/mlserver.py"],
    "kserve": ["adapters/kserve.py"],
    "mlflow": ["mlflow.py"],
    "bentoml": ["adapters/bentoml.py"],
    "ray": ["adapters/ray_serve.py", "engines/ray.py"],
    "pyspark": ["engines/spark.py"],
    "dask": ["engines/dask.py"],
    "distributed": ["engines/dask.py"],
    "daft": ["engines/daft.py"],
    "triton_python_backend_utils": ["adapters/triton.py"],
}
"""Third-party library → the only files (by prefix, under hbc/) that may import it. numpy may be imported anywhere."""

FLOORS = {
    "compiler/tvm": (
        *("lean_imports", "__init__", "plan", "tir", "nest", "trees", "kernels", "build", "run", "library", "host"),
        *("costs", "compiler"),
    ),
    "compiler/tvm/trees": (
        *("__init__", "ranks", "categories", "keys", "set_keys", "leaves", "pieces", "walk", "patches", "ranges", "scan"),
        *("gpu", "ensembles"),
    ),
}
"""Folder under hbc/ → its folders and files from the ground up: each imports from itself and from those before it."""

ALONE = {
    "compiler/tvm/plan": ("hbc.lazy", "hbc.ir", "hbc.ops", "hbc.compiler.tvm.plan"),
    "compiler/tvm/tir": ("hbc.lazy", "hbc.ir.types", "hbc.compiler.tvm.tir", "hbc.compiler.tvm.lean_imports"),
}
"""Folder under hbc/ → the only modules of hbc (by prefix) that it imports. The plan of a function knows no TVM, and the code of
expressions no graph."""

CIRCLES: set[frozenset[str]] = {
    frozenset({"hbc.ir.graph", "hbc.ir.printer"}),
    frozenset({"hbc.ops.tree", "hbc.ops.tree_strategies"}),
}
"""The only files that import each other: a class and its printer, a class and its lowering."""

BRANCH = re.compile(r"""\bbackend\b *[!=]=|[!=]= *["'](tvm|torch|torchscript|onnx|numpy)["']""")
"""A comparison with the name of a backend."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path, typing: bool = False) -> list[tuple[str, int]]:
    """Absolute module names that a file imports (with its line), those under TYPE_CHECKING left out unless `typing` is asked for."""
    found = []
    for node, for_types in statements(parsed(path).body):
        if for_types and not typing:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.module or "", node.lineno))
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def statements(body: list[ast.stmt], for_types: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement at any depth, and whether it is under TYPE_CHECKING. Expressions, most of a tree's nodes, are not looked at."""
    for node in body:
        yield node, for_types
        inside = for_types or (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, part, []), inside)


def room(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def test_imports_point_one_way() -> None:
    for path in FILES:
        mine = room(path)
        for name, line in imports(path):
            if not name.startswith("hbc."):
                continue
            target = name.removeprefix("hbc.")
            allowed = MAY_IMPORT[mine] | {mine}
            fits = any(target == other or target.startswith(f"{other}.") for other in allowed)
            # `from hbc.compiler import base` names the package first, then its member: the package alone is no room.
            fits |= any(other.startswith(f"{target}.") for other in allowed)
            assert fits, f"{path}:{line}: {mine} must not import {name}"


def test_every_permission_is_used() -> None:
    """A room imports all that it may, and every home its library: a newcomer reads both tables as they are."""
    for mine, others in MAY_IMPORT.items():
        names = {name for path in FILES if room(path) == mine for name, _ in imports(path, typing=True)}
        unused = sorted(other for other in others if not any(f"{name}.".startswith(f"hbc.{other}.") for name in names))
        assert not unused, f"MAY_IMPORT[{mine!r}]: nothing of {unused} is imported"
    found = {(name.split(".")[0], path.relative_to(ROOT).as_posix()) for path in FILES for name, _ in imports(path)}
    for library, homes in HOMES.items():
        unused = [home for home in homes if not any(name == library and path.startswith(home) for name, path in found)]
        assert not unused, f"HOMES[{library!r}]: {unused} does not import it"


CALLED_FROM_OUTSIDE = {
    "an interface of others, who call all of it": [
        *("adapters/", "engines/", "mlflow.py", "serve/grpc/methods.py"),
    ],
    "methods of a model, for users": ["CompiledModel.across", "CompiledModel._repr_html_"],
    "methods by which Python's own libraries call": [
        *("_Finder.create_module", "_Finder.exec_module", "_Plain.readable", "_Plain.readinto"),
        "Kept.get_buffer",
        "Server.capture_signals",
    ],
}
"""Reason → the files (by prefix, under hbc/) and names that nothing in hbc/ uses."""

UNREGISTERED = {
    "property",
    "cached_property",
    "staticmethod",
    "classmethod",
    "record",
    "cache",
    "contextmanager",
    "abstractmethod",
}
"""Decorators that leave a name to be called by its name. Others, such as @converts, register what they decorate."""


def test_every_name_is_used() -> None:
    """Each function, class, constant and field of hbc/ is used in hbc/, or CALLED_FROM_OUTSIDE says by whom. Names are compared, not
    scopes: a dead `run` beside a living one passes."""
    used: set[str] = set()
    defined: list[tuple[Path, str, str]] = []

    def collect(path: Path, body: list[ast.stmt], owner: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                decorators = {ast.unparse(decorator).split("(")[0].split(".")[-1] for decorator in node.decorator_list}
                if decorators <= UNREGISTERED:
                    defined.append((path, owner, node.name))
                if isinstance(node, ast.ClassDef):
                    collect(path, node.body, f"{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                places = [place for target in targets for place in ast.walk(target)]
                defined.extend((path, owner, place.id) for place in places if isinstance(place, ast.Name))

    for path in FILES:
        collect(path, parsed(path).body, "")
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()) | ast.alias(name=name):
                    used.add(name)
                case ast.Constant(value=str(name)):  # looked up by name, or exported
                    used.add(name)
                case ast.MatchClass(kwd_attrs=names):
                    used |= set(names)
    outside = [each for some in CALLED_FROM_OUTSIDE.values() for each in some]
    unused = [(path.relative_to(ROOT).as_posix(), owner + name) for path, owner, name in defined if name not in used]
    unused = [(path, name) for path, name in unused if not name.split(".")[-1].startswith("__")]
    dead = [f"{path}: {name}" for path, name in unused if name not in outside and not path.startswith(tuple(outside))]
    assert not dead, f"nothing uses {dead}"
    seen = [each for each in outside if any(name == each or path.startswith(each) for path, name in unused)]
    assert seen == outside, f"used meanwhile: {set(outside) - set(seen)}"


@pytest.mark.parametrize("folder", FLOORS)
def test_floors_point_down(folder: str) -> None:
    """Imports inside functions and for types count too."""
    home, order = ROOT / folder, FLOORS[folder]
    files = sorted(home.rglob("*.py"))
    floors = {path: path.relative_to(home).with_suffix("").parts[0] for path in files}
    assert set(floors.values()) == set(order)
    for path in files:
        below = order[: order.index(floors[path]) + 1]
        for target, line in imported_files(path):
            assert target not in floors or floors[target] in below, f"{path}:{line}: {floors[path]} must not import {target}"


@pytest.mark.parametrize("folder", ALONE)
def test_folders_that_know_little(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        names = [(name, line) for name, line in imports(path, typing=True) if name.startswith("hbc.")]
        wrong = [(name, line) for name, line in names if not f"{name}.".startswith(tuple(f"{each}." for each in ALONE[folder]))]
        assert not wrong, f"{path}: {wrong}"
        knows_tvm = any(name == "tvm" for name, _ in imports(path, typing=True))
        assert not knows_tvm or folder != "compiler/tvm/plan", f"{path}: a plan does not import TVM"


@functools.cache
def imported_files(path: Path) -> set[tuple[Path, int]]:
    """The files of hbc that a file imports anywhere, inside functions and for types too, with its lines."""
    found = set()
    for name, line in imports(path, typing=True):
        place = ROOT.parent.joinpath(*name.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if name.startswith("hbc.") and file in KNOWN and file != path:
                found.add((file, line))
    # `from hbc.ir import graph` names the package first: what it means is the file in it.
    files = {(file, line) for file, line in found if file.name != "__init__.py"}
    packages = {(f, n) for f, n in found - files if not any(n == m and f.parent in other.parents for other, m in files)}
    return files | packages


def reachable(start: Path, below: dict[Path, set[Path]]) -> set[Path]:
    """All files that a file imports, directly or by way of others."""
    reached: set[Path] = set()
    waiting = [start]
    while waiting:
        new = below[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def test_no_circles() -> None:
    """No file imports itself by way of others, but for the pairs that are named."""
    below = {path: {file for file, _ in imported_files(path)} for path in FILES}
    found = set()
    for path in FILES:
        reached = reachable(path, below)
        if path in reached:
            circle = {other for other in reached if path in reachable(other, below)}
            found.add(frozenset(".".join(p.relative_to(ROOT.parent).with_suffix("").parts) for p in circle))
    assert found <= CIRCLES, f"new circles: {sorted(map(sorted, found - CIRCLES))}"
    assert found >= CIRCLES, f"cut meanwhile, so that CIRCLES need not name it: {sorted(map(sorted, CIRCLES - found))}"


def test_every_room_has_its_directions() -> None:
    """A new folder or file of hbc/ has a row in MAY_IMPORT, and stands on the map. Only the command line imports `hbc` itself."""
    assert {room(path) for path in FILES} == set(MAY_IMPORT)
    named = set(re.findall(r"`([\w/.]+)`", (ROOT.parent / "docs/house.md").read_text()))
    missing = [name for name in MAY_IMPORT if not {f"hbc/{name}", f"hbc/{name}.py"} & named and name != "__init__"]
    floors = [name for order in FLOORS.values() for name in order if name != "__init__"]
    missing += [name for name in floors if not {f"{name}/", f"{name}.py"} & named]
    assert not missing, f"docs/house.md lacks {missing}"
    for path in FILES:
        whole = [line for name, line in imports(path) if name == "hbc"]
        assert not whole or room(path) == "cli", f"{path}:{whole}: import from the room"


def test_libraries_behind_names_are_homes_too() -> None:
    """Modules that are imported by name, when they are needed, stand in the registries only."""
    from hbc.compiler.base import BACKENDS, load_compiler
    from hbc.parser.files import READERS

    assert all(backend.module.startswith("hbc.compiler.") for backend in BACKENDS.values())
    modules = [*READERS.values(), *registry.MODULES.values()]
    assert all(name.startswith("hbc.parser.") for name in modules)
    for name in hbc.backends():
        if hbc.backends()[name] and name in BACKENDS:
            compiler, declared = load_compiler(name), BACKENDS[name]
            assert compiler.exports == declared.exports, f"{name} declares its files twice, differently"
            assert compiler.strategies == declared.strategies, f"{name} declares its strategies twice, differently"
    for name in set(READERS.values()):
        assert callable(importlib.import_module(name).read_file)


def test_libraries_are_imported_only_in_their_files() -> None:
    standard = sys.stdlib_module_names | {"numpy", "hbc", "__future__"}
    for path in FILES:
        relative = path.relative_to(ROOT).as_posix()
        for name, line in imports(path):
            library = name.split(".")[0]
            if library not in standard:
                assert library in HOMES, f"{path}:{line}: {library} has no home in tests/test_house.py"
                assert relative.startswith(tuple(HOMES[library])), f"{path}:{line}: {library} belongs in {HOMES[library]}"


def test_no_branch_on_a_backend() -> None:
    for path in FILES:
        text = path.read_text()
        if room(path) != "api":
            assert not BRANCH.search(text), f"{path}: lower, don't branch on a backend"
        assert ast.get_docstring(parsed(path)) or path.name == "__init__.py", f"{path} has no docstring"


def test_no_long_file() -> None:
    """No file over 600 lines: it is split by family. Nothing that is left to do hides in a comment."""
    tests = ROOT.parent
    rooms = (path for room in ("tests", "benchmarks", "datasets") for path in (tests / room).rglob("*.py"))
    files = [*FILES, *(path for path in rooms if not path.is_relative_to(tests / "benchmarks/.peers"))]
    long = {str(path): lines for path in files if (lines := path.read_text().count("\n")) > 600}
    assert not long
    marks = re.compile(r"#.*\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
    assert not [str(path) for path in files if marks.search(path.read_text())]


OF_ALL_ROOMS = {
    "benchmarks",
    "datasets",
    "docs",
    "estimators",
    "figures",
    "golden",
    "house",
    "installation",
    "restrictions",
    "results",
    "sweep",
}
"""The tests that lie at the top of tests/ since they run all rooms, or none: tables, golden programs, documents, rules."""


def test_tests_lie_in_the_folder_of_their_room() -> None:
    """tests/ has the folders of hbc/, and at its top the tests of the files at the top of hbc/. File names are unique: pytest imports a
    test by its name alone."""
    tests = ROOT.parent / "tests"
    files = sorted(tests.rglob("test_*.py"))
    for path in files:
        place = ROOT / path.parent.relative_to(tests)
        if path.parent == tests:
            subject = path.stem.removeprefix("test_")
            assert subject in OF_ALL_ROOMS or (ROOT / f"{subject}.py").exists(), f"{path}: move it into the folder of its room"
        else:
            wanted = place.is_dir() or place.with_suffix(".py").exists()
            assert wanted, f"{path}: hbc/ has no room {place.relative_to(ROOT)}"
    names = [path.name for path in files]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)


def test_cached_properties_have_no_lock() -> None:
    """Before Python 3.12 functools' cached_property has a lock: a signal handler or a forked child could wait for ever (hbc/lazy.py)."""
    for path in FILES:
        if room(path) != "lazy":
            assert "functools.cached_property" not in {name for name, _ in imports(path)}, f"{path}: take hbc.lazy's"


def test_frozen_dataclasses_are_records() -> None:
    """`dataclass(frozen=True)` takes 1 to 2 ms of every process's start (hbc/lazy.py). The linker knows nothing of hbc."""
    for path in FILES:
        if room(path) != "linker":
            assert "dataclass(frozen" not in path.read_text().replace("`dataclass(frozen=True)`", ""), (
                f"{path}: take hbc.lazy's record"
            )


def test_types_are_shipped() -> None:
    assert (ROOT / "py.typed").exists()
    assert 'packages = ["hbc"]' in (ROOT.parent / "pyproject.toml").read_text()  # hatchling packs every file of it


def test_import_is_light() -> None:
    """`import hbc` imports no library but numpy."""
    code = (
        "import sys, numpy; before = set(sys.modules); import hbc; new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "new -= set(sys.stdlib_module_names) | {'hbc', 'numpy'}; print(sorted(n for n in new if n[0] != '_'))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_every_operator_says_what_it_is() -> None:
    for name, op in OPERATORS.items():
        assert op.__doc__, f"{name} has no docstring"
        assert op.level in ("tensor", "model")
        assert op.level == "tensor" or op.lower is not hbc.ir.graph.Operator.lower or name in HOST_OPERATORS, (
            f"{name} has no lowering"
        )


NO_PLACES = {
    "numbers, strings or bytes that are computed with": [
        *("Constant.value", "Rank.edges", "Categorize.categories", "Interpolate.xs", "Interpolate.ys", "BSplines.knots"),
        *("Standardize.offset", "Standardize.scale", "Affine.scale", "Affine.offset", "OneHot.value"),
        *("Impute.fill", "ImputeText.fill", "InterpolateBothWays.xs", "InterpolateBothWays.ys", "OnLines.points"),
        *(
            "Linear.coef",
            "Linear.intercept",
            "TableSum.table",
            "PairSums.weights",
            "ClassProducts.weights",
            "WeightedMedian.weights",
        ),
        *("Distances.points", "Distances.weights", "Weigh.idf"),
        *("CoordinateDescent.gram", "MultiplicativeUpdates.components", "Topics.words", "Analyze.stop"),
        *("TreeEnsemble.threshold", "TreeEnsemble.missing_left", "TreeEnsemble.base", "CategoryPlanes.inside"),
        *("CategoryPlanes.missing", "CategoryPlanes.invalid", "CheckValues.values", "CheckValues.nan", "CheckValues.none"),
        *("CountTerms.terms", "CountItems.terms", "HoldsLabels.terms", "HoldsLabels.integers", "HoldsLabels.floats"),
        *("Lookup.categories", "CategoryPlanes.categories", "HashedValues.known", "MapValues.terms"),
    ],
    "what is looked up: `span` says which integers come out": [
        *(
            "TakeByColumn.table",
            "Lookup.codes",
            "Lookup.unknown",
            "Lookup.missing",
            "TreeEnsemble.values",
            "TreeEnsemble.leaf_ids",
        ),
        "HashedValues.values",
    ],
    "facts on which no result depends": ["TreeEnsemble.cover"],
    "places of the same arrays, which `require_sound` follows": [
        "TreeEnsemble.roots",
        "TreeEnsemble.left",
        "TreeEnsemble.right",
    ],
    "where strings end in bytes, read by Python alone": [
        *("Analyze.stop_ends", "CountTerms.ends", "CountItems.ends", "HoldsLabels.ends", "MapValues.ends"),
    ],
}
"""Reason → the array parameters that name no place of a table, or are checked in another way. A subclass has the parameters of its base."""


def test_every_operator_says_what_its_integers_lead_to() -> None:
    """Compiled code would follow integers that lead out of a table. Each parameter of integers is in `looks_up`, or in NO_PLACES."""
    import_all()
    listed = {name for names in NO_PLACES.values() for name in names}
    found = set()
    for name, op in OPERATORS.items():
        if not op.__module__.startswith("hbc.ops") and name != "Constant":
            continue  # a compiler's own, which no file holds
        source = ast.parse(textwrap.dedent(inspect.getsource(op.looks_up)))
        named = {node.value for node in ast.walk(source) if isinstance(node, ast.Constant)}
        bases = [base.__name__ for base in op.__mro__]
        for field in fields(op):  # type: ignore[arg-type]
            names = {f"{base}.{field.name}" for base in bases}
            if "Array" in str(field.type) and field.name not in named:
                assert names & listed, f"{name}.{field.name}: name it in looks_up, or in NO_PLACES with the reason"
                found |= names & listed
    assert found == listed


NO_MAGNITUDE = {
    *("Expm1", "Log", "Log1p", "Sin", "Cos", "Pow", "Mod", "BlockMatMul", "Barycentre", "TakeByColumn", "PairwiseCoupling"),
    *("CLogarithm", "MapValues"),
    *("BSplines", "HashedValues", "WeightedMedian", "Scatter", "ScatterEntries", "Present", "Ascending", "PresentEntries"),
    *("CoordinateDescent", "MultiplicativeUpdates", "Ones", "EntriesOf", "Topics", "CategoryPlanes", "Input"),
    *("Not", "And", "Or", "MissingText"),  # truth values: 1, by the default
    *("HashText", "ImputeText", "Analyze", "CountTerms", "CountItems", "HoldsLabels", "HashTerms", "HashItems"),  # of strings
}
"""Operators that leave `magnitude` at its neutral default. A check behind such an operator is computed in numpy at every call."""


def test_every_operator_says_how_large_its_numbers_are() -> None:
    import_all()
    ours = {name: op for name, op in OPERATORS.items() if op.__module__.startswith(("hbc.ops", "hbc.ir"))}
    silent = {name for name, op in ours.items() if op.magnitude is Operator.magnitude and not op.probability}
    silent -= {name for name, op in ours.items() if getattr(op, "result", None) == "bool"}
    assert silent == NO_MAGNITUDE, "declare `magnitude`, or list the operator in NO_MAGNITUDE"


HOST_OPERATORS = {
    *("ImputeText", "MissingText", "Analyze", "CountTerms", "CountItems", "HashTerms", "HashItems", "HoldsLabels", "HashText"),
    *("HashedValues", "CoordinateDescent", "MultiplicativeUpdates", "Topics", "MapValues"),
}
"""Operators that read only strings, lists and dicts, or iterate in numpy. They never reach a device, so they have no lowering.
HashedValues has none either: it stays on the host if a backend does not run it."""


def test_every_converter_is_in_the_table() -> None:
    """What `hbc.supported_operators()` promises has a row in tests/estimators (by the classes of its models, at any depth)."""
    from estimators import covered_classes
    from installed import ABSENT

    if ABSENT:
        pytest.skip(f"the table lacks the families of {', '.join(sorted(ABSENT))}")
    missing = sorted(set(hbc.supported_operators()) - covered_classes())
    assert not missing, f"no case in tests/estimators for {missing}"


def test_public_names_exist() -> None:
    for name in hbc.__all__:
        assert getattr(hbc, name) is not None
    assert registry.public_name(registry.Entry) == "hbc.parser.registry.Entry"


def test_the_documentation_lists_what_converts() -> None:
    from support_table import in_page, support_table

    assert in_page() == support_table(), "run: python tests/support_table.py"
