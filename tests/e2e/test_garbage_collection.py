"""The program's choice about garbage collection stays as it is when the recording starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import write_script
from quick import recorded

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("choice", "is_enabled"), [("enable", b"True\n"), ("disable", b"False\n")])
def test_collection_is_as_the_program_chose(choice: str, is_enabled: bytes, tmp_path: Path) -> None:
    write_script(tmp_path, f"import gc\ngc.{choice}()\nimport torch\nprint(gc.isenabled())\n")
    ended = recorded(["train.py"], tmp_path)
    assert (ended.status, ended.stdout) == (0, is_enabled)
