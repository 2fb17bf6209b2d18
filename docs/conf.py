"""How the pages become a site: `make site`, warnings are errors."""

import re

project = "gpuledger"
author = "the gpuledger authors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_mock_imports = ["torch", "gpuledger.collect.adapter"]  # the pages are built without torch
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
html_theme = "furo"
html_title = "gpuledger"
html_show_sourcelink = False
html_copy_source = False
exclude_patterns = ["_build"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

OUTSIDE = re.compile(r"(?<!!)\[([^\]]*)\]\((?:\.\./)+(?:README\.md|CONTRIBUTING\.md|[^)\s]*/?)\)")
"""A link to a file of the repository that is no page."""


def keep_inside(app, page, source):
    """Make plain words of links that lead out of the pages: on a site there is nothing behind them."""
    depth = page.count("/")
    source[0] = OUTSIDE.sub(lambda match: match[1] if match[0].count("../") > depth else match[0], source[0])


def setup(app):
    """Let the pages be read through `keep_inside`, and show the class behind `gpuledger.scope` by its public name."""
    import gpuledger

    gpuledger.scope.__name__ = "scope"
    app.connect("source-read", keep_inside)
