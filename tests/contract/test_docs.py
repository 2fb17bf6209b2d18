"""The pages say what the program does: commands run, links lead somewhere, the generated page is current."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PAGES_WITH_COMMANDS = (
    "README.md",
    "docs/quickstart.md",
    "docs/diff.md",
    "docs/ci.md",
    "docs/live.md",
    "docs/groups.md",
    "docs/plot.md",
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TRAIN = """\
import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    loss = nn.functional.cross_entropy(model(torch.randn(64, 256)), torch.randint(10, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""
PRELUDE = """\
import torch
from torch import nn
model = nn.Linear(256, 10)
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.randn(64, 256) for _ in range(3)]
"""


def blocks(page: str, language: str) -> list[str]:
    """Return the page's code blocks in one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [body for found, body in BLOCK.findall(text) if found == language]


def commands(page: str) -> list[str]:
    """Return the page's shell lines that run gpuledger or Python."""
    lines = [line.split("  #")[0].strip() for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(("gpuledger ", "python "))]


@pytest.fixture
def desk(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A directory with a small training in it, and an environment in which the commands of the pages are found."""
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    tools = tmp_path / ".bin"
    tools.mkdir()
    for name, module in {"gpuledger": " -m gpuledger", "python": "", "torchrun": " -m torch.distributed.run"}.items():
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n', encoding="utf-8")
        tool.chmod(0o755)
    return tmp_path, {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.torch
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS)
def test_the_commands_of_a_page_run_in_its_order(page: str, desk: tuple[Path, dict[str, str]]) -> None:
    place, environment = desk
    assert len(commands(page)) >= 2
    for command in commands(page):
        done = subprocess.run(
            ["sh", "-c", command], cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{page}: {command}\n{done.stdout}{done.stderr}"


@pytest.mark.torch
@pytest.mark.parametrize("page", [*PAGES_WITH_COMMANDS, "docs/notebook.md", "docs/loggers.md"])
def test_the_python_of_a_page_runs(page: str, desk: tuple[Path, dict[str, str]]) -> None:
    place, environment = desk
    for block in blocks(page, "python"):
        (place / "snippet.py").write_text(PRELUDE + block, encoding="utf-8")
        command = [sys.executable, "snippet.py"]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{page}:\n{block}\n{done.stdout}{done.stderr}"


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
def test_every_key_of_a_manifest_is_in_the_page_of_the_format(desk: tuple[Path, dict[str, str]]) -> None:
    place, environment = desk
    subprocess.run(["sh", "-c", "gpuledger run -q train.py"], cwd=place, env=environment, check=True)
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    for manifest in (place / "train.ledger" / "manifest.json", place / "train.ledger" / "rank-0" / "manifest.json"):
        keys = json.loads(manifest.read_text(encoding="utf-8"))
        assert [key for key in keys if f"`{key}`" not in page] == []
