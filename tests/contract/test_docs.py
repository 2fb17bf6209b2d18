"""The pages: every command is named, links lead somewhere, the generated page is current."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from folders import ROOT
from quick import quick_gpuledger

BUILT = ROOT / "docs" / "_build"
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if BUILT not in page.parents)])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_every_command_of_the_program_is_in_the_readme() -> None:
    from gpuledger.cli.main import COMMANDS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`gpuledger {name}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_it(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        if "://" in target:
            continue
        place = (page.parent / name) if name else page
        assert place.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(place), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors a page's headings get when it is rendered."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_of_the_format_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_format_doc", ROOT / "tools" / "make_format_doc.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.PAGE.read_text(encoding="utf-8") == maker.render(), "run `make docs`"


@pytest.mark.torch
def test_every_key_of_a_manifest_is_in_the_page_of_the_format(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "data" / "docs" / "train.py", tmp_path)
    command = [*quick_gpuledger(), "run", "-q", "train.py"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=True)
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    place = tmp_path / "train.ledger"
    for manifest in (place / "manifest.json", place / "rank-0" / "manifest.json"):
        keys = json.loads(manifest.read_text(encoding="utf-8"))
        assert [key for key in keys if f"`{key}`" not in page] == []
