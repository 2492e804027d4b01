"""How Sphinx makes the documentation of these pages: `make docs`. Nothing is fetched from elsewhere."""

from __future__ import annotations

from hbc.version import VERSION

project = "hbc"
author = "the developers of hbc"
copyright = "2026, the developers of hbc"
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nitpicky = True  # with -W, a link to nothing is an error
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
