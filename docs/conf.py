"""Settings of the documentation site (``make docs``)."""

from __future__ import annotations

from importlib.metadata import version as installed

from sphinx_gallery.sorting import ExplicitOrder

project = "Denskit"
author = copyright = "the authors of Denskit"
release = installed("denskit")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Denskit"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch_sim", "tblite", "lmdb"]
root_doc = "index"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "subsection_order": ExplicitOrder(["../examples/beginner", "../examples/advanced", "*"]),
    "within_subsection_order": "FileNameSortKey",
    "filename_pattern": r"/\d\d_",  # all of them run; one that fails breaks the build
    "ignore_pattern": r"active_learning\.py",  # minutes on two cores; has a test of its own
    "reset_modules": (),
    "show_memory": False,
    "write_computation_times": False,
}
