"""The pages build as a site without one warning, offline, and hold every guide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from folders import ROOT
from libraries import needs

pytestmark = needs("sphinx")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """In a process of its own: the API reference imports gpuledger with a stand-in for torch."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, str(ROOT / "docs"), str(site)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    built = {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")}
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if page.parts[0] != "_build"} <= built
    reference = (site / "api.html").read_text(encoding="utf-8")
    assert 'id="gpuledger.scope"' in reference
    assert 'id="gpuledger.ops.rebuild"' in reference
