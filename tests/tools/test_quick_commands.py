"""The server of quick commands tells each how it ended, also while others are killed."""

from __future__ import annotations

import subprocess

import pytest
from quick import quick_python

ENDS = [*range(20), 255]


@pytest.mark.torch
def test_commands_that_are_killed_take_nothing_from_others() -> None:
    killed = [_started("import time; time.sleep(60)") for _ in ENDS]
    ended = [_started(f"import os; os._exit({status})") for status in ENDS]
    for one in killed:
        one.kill()
    assert [one.wait(60) for one in ended] == ENDS
    assert [one.wait(60) for one in killed] == [-9] * len(ENDS)


def _started(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([quick_python(), "-c", program])
