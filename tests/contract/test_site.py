"""The pages build as a site without one warning, offline, and hold every guide."""

from __future__ import annotations

from pathlib import Path

import pytest
from folders import ROOT

sphinx = pytest.importorskip("sphinx.application", reason="the site needs Sphinx")


@pytest.mark.filterwarnings("ignore")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    app = sphinx.Sphinx(
        srcdir=ROOT / "docs",
        confdir=ROOT / "docs",
        outdir=tmp_path / "site",
        doctreedir=tmp_path / "trees",
        buildername="html",
        warningiserror=True,
        status=None,
    )
    app.build(force_all=True)
    assert app.statuscode == 0
    built = {page.relative_to(tmp_path / "site").with_suffix("") for page in (tmp_path / "site").rglob("*.html")}
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if page.parts[0] != "_build"} <= built
