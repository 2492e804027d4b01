"""How Sphinx makes the documentation of these pages: `make docs`. Nothing is fetched from elsewhere."""

from __future__ import annotations

import inspect
import re
from typing import Any

from hbc.version import VERSION

project = "hbc"
author = "the developers of hbc"
copyright = "2026, the developers of hbc"
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nitpicky = True  # with -W, a link to nothing is an error
smartquotes = False  # "tvm" is to be copied
default_role = "literal"  # docstrings write code in single backticks

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"hbc {VERSION}"
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True


def plain_words(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep names such as n_features_in_ from being read as links, which reStructuredText writes with an underscore behind, and the
    sentence about a property from being read as `type: description`, which napoleon does with its first line."""
    if what == "property":
        lines[:] = [*(inspect.getdoc(thing) or "").splitlines(), ""]
    lines[:] = [re.sub(r"(?<![`\w.])([\w.]+)_(?=[\s,.;:\])]|$)", r"``\1_``", line) for line in lines]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_words, priority=600)  # after napoleon
