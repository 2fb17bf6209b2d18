"""Errors planted in gpuledger's own code, in the window and in each pass, change nothing for the program.

Every eighth function that runs in a recorded program raises here, once, at its beginning, the same ones each time;
`make entrances` has every statement of every function raise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from folders import TESTS
from planted_programs import PROGRAMS

pytestmark = pytest.mark.torch

WALK = TESTS / "support" / "planted_walk.py"
PARTS = 8


@pytest.mark.first
@pytest.mark.timeout(1200)
def test_the_program_goes_on_the_error_is_noted_and_nothing_stays() -> None:
    orders = {"programs": [], "share": [0, PARTS], "every_statement": False}
    done = subprocess.run([sys.executable, str(WALK), json.dumps(orders)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["program"] for result in results] == list(PROGRAMS)
    assert {result["program"]: result["without"] for result in results if result["without"]} == {}
    assert [failure for result in results for failure in result["failures"]] == []
    assert sum(len(result["unreached"]) for result in results) < 4  # what happens only if something takes long
    assert sum(len(result["unguarded"]) for result in results) < 30  # scopes, and lines that call what is guarded
    assert sum(result["walked"] for result in results) > 100
    phases = {at for result in results for at in result["phases"]}
    assert phases == {"start", "before", "window", "unprofiled", "time", "ended"}
