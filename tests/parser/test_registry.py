"""Which converters are imported when: a model of one library needs none of another's."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

FITS = {
    "lightgbm": """
        import lightgbm
        model = lightgbm.train({"verbosity": -1, "num_leaves": 4, "objective": "binary"}, lightgbm.Dataset(X, y), 2)
    """,
    "xgboost": """
        import xgboost
        model = xgboost.train({"max_depth": 2, "verbosity": 0}, xgboost.DMatrix(X, y), 2)
    """,
    "catboost": """
        import catboost
        model = catboost.CatBoost({"iterations": 2, "depth": 2, "verbose": 0, "allow_writing_files": False}).fit(X, y)
        getattr(model, "__sklearn_tags__", list)()  # imports scikit-learn; CatBoost before 1.2.9 does not have it
    """,
}


@pytest.mark.parametrize("library", FITS)
def test_boosters_convert_without_the_converters_of_scikit_learn(library: str) -> None:
    """Neither hbc's modules for scikit-learn are imported, which take 0.3 s, nor scikit-learn itself, unless the library does so."""
    pytest.importorskip(library)
    start = """
        import sys
        import numpy as np
        X = np.random.default_rng(0).normal(size=(60, 3)).astype("f4")
        y = (X[:, 0] > 0).astype("f4")
    """
    end = """
        before = set(sys.modules)
        import hbc
        compiled = hbc.convert(model, "numpy")
        assert compiled.predict(X).shape == (60,)
        new = {name for name in set(sys.modules) - before if name.split(".")[0] == "sklearn"}
        print(sorted(new | {name for name in sys.modules if name.startswith("hbc.parser.sklearn")}))
    """
    code = "".join(map(textwrap.dedent, (start, FITS[library], end)))
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True).stdout
    assert found == "[]\n"
