"""Settings of the documentation site (``make docs``)."""

from __future__ import annotations

from importlib.metadata import version as installed

project = "Denskit"
author = "the authors of Denskit"
release = installed("denskit")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Denskit"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch_sim", "tblite", "lmdb"]
root_doc = "index"
