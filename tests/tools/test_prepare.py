"""tools/prepare.py: what it refuses, and that a failed step is told with what it printed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from folders import TOOLS


@pytest.fixture
def prepare() -> ModuleType:
    """The script as a module."""
    place = TOOLS / "prepare.py"
    spec = importlib.util.spec_from_file_location("prepare", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_old_python_is_refused_with_the_way_out(
    prepare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert prepare.main(["run"]) == 1
    told = capsys.readouterr().err
    assert "Python 3.10.4: gpuledger needs 3.11 or newer" in told
    assert "make PYTHON=" in told


def test_a_wrong_call_is_told_the_right_ones(prepare: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.main(["everything"]) == 2
    assert "run|docs|test|wheel" in capsys.readouterr().err


def test_a_failed_step_shows_what_it_printed(prepare: ModuleType) -> None:
    with pytest.raises(prepare.PrepareError, match=r"exit status 3\nwhat went wrong"):
        prepare.call([sys.executable, "-c", "import sys; print('what went wrong'); sys.exit(3)"])


def test_a_stamp_goes_stale_with_the_file_it_was_made_from(
    prepare: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare, "ROOT", tmp_path)
    pins = tmp_path / "pins.txt"
    pins.write_text("torch==1\n", encoding="utf-8")
    prepare.set_stamp(tmp_path, "run", prepare.stamp_of("pins.txt"))
    assert prepare.is_fresh(tmp_path, "run", prepare.stamp_of("pins.txt"))
    pins.write_text("torch==2\n", encoding="utf-8")
    assert not prepare.is_fresh(tmp_path, "run", prepare.stamp_of("pins.txt"))


def test_the_pages_are_built_without_the_tools_for_tests(
    prepare: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed: list[str] = []
    monkeypatch.setattr(prepare, "VENV", tmp_path)
    monkeypatch.setattr(prepare, "prepare_run", lambda: None)
    monkeypatch.setattr(prepare, "pip_install", lambda *tools: installed.extend(tools))
    prepare.prepare_docs()
    assert {tool.partition(">")[0] for tool in installed} == {"sphinx", "myst-parser", "furo"}
    prepare.prepare_docs()
    assert len(installed) == 3
    makefile = (TOOLS.parent / "Makefile").read_text(encoding="utf-8")
    assert "prepare.py docs" in makefile.partition("\nsite:")[2].partition("\nclean:")[0]
