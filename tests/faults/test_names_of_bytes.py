"""Scripts and arguments whose names are no valid UTF-8 are recorded, and the run can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from programs import TRAIN, execute, manifest, write_script
from quick import quick_gpuledger, recorded

from gpuledger.errors import UsageError
from gpuledger.model.run_directory import choose_directory
from gpuledger.model.run_writer import readable


@pytest.mark.torch
def test_a_script_and_an_argument_that_are_not_utf8(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + "step(); step(); step()").rename(tmp_path / os.fsdecode(b"tr\xff.py"))
    ended = recorded([os.fsdecode(b"tr\xff.py"), os.fsdecode(b"\xc3\xa9\xfe")], tmp_path, options=("--steps", "1:3"))
    assert ended.status == 0
    assert b"gpuledger show tr_.ledger" in ended.stderr
    run = manifest(tmp_path / "tr_.ledger")
    assert (run["name"], run["command"][1:]) == ("tr_", ["tr\\xff.py", "é\\xfe"])
    for command in ("show", "report", "balance"):
        assert execute([*quick_gpuledger(), command, "tr_"], tmp_path).status == 0


@pytest.mark.parametrize(
    ("text", "shown"), [("é", "é"), ("\udcff\udc80", "\\xff\\x80"), ("\ud800a", "\\ud800a"), ("\\xff", "\\xff")]
)
def test_a_word_is_shown_in_valid_unicode(text: str, shown: str) -> None:
    assert readable(text) == shown


def test_a_name_that_is_not_utf8_is_refused_before_the_program_starts(tmp_path: Path) -> None:
    ended = recorded(["--", "touch", "started"], tmp_path, options=("--out", os.fsdecode(b"o\xff")))
    assert ended.status == UsageError.exit_code
    assert b"must be valid UTF-8" in ended.stderr
    assert os.listdir(tmp_path) == []


def test_a_name_from_a_script_is_made_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_directory(None, force=False, stem="a\udcff\ud800") == Path("a__.ledger")
