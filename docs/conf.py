"""Sphinx configuration: `make docs` builds the site and fails on the first warning."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

project = "Freshet"
author = "The Freshet authors"
copyright = "2026, The Freshet authors"  # noqa: A001 - the name that Sphinx reads

extensions = ["myst_parser", "sphinx.ext.autodoc", "reference_pages"]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
# Anchors of headings, as GitHub makes them, so that links work in both places.
myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_member_order = "bysource"

# Options such as --json keep their hyphens.
smartquotes = False

html_theme = "furo"
html_title = "Freshet"
html_static_path: list[str] = []
html_show_sourcelink = False
html_copy_source = False
# Nothing is loaded from other hosts: Furo's own fonts are the system's.
html_theme_options = {"source_edit_link": "", "top_of_page_buttons": []}
