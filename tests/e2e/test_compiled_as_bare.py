"""The compiler does the same in a recorded program as in a bare one: graphs, breaks, recompilations and cache keys."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
from compiled_pairs import MATRICES, PROGRAMS, STEPS
from folders import TESTS
from quick import quick_python

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # Dynamo reads attributes that warn

WITHOUT_STEPS = {"compiled autograd"}
"""No weight is updated."""


def pairs(backend: str, *names: str) -> str:
    """Return as JSON what the compiler has done in programs, bare and recorded."""
    words = [quick_python(), str(TESTS / "support" / "compiled_pairs.py"), "cpu", backend, *names]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_compiler_does_the_same(name: str, made_once: Callable[[str, Callable[[], str]], str]) -> None:
    found = json.loads(made_once("compiled-pairs", lambda: pairs("keep", *PROGRAMS)))
    bare, recorded = found[name]
    assert bare["graphs"] or name == "falls back"
    assert recorded.pop("steps") in range(0 if name in WITHOUT_STEPS else STEPS - 1, STEPS + 1)
    assert recorded.pop("notes") == []
    assert set(recorded.pop("asked")) <= set(bare.pop("asked"))
    assert recorded == bare


@pytest.mark.parametrize("cached", [False, True])
def test_generated_code_and_cache_keys_are_the_same(
    cached: bool, made_once: Callable[[str, Callable[[], str]], str]
) -> None:
    (found,) = json.loads(made_once("generated-pairs", lambda: pairs("inductor", MATRICES))).values()
    bare, recorded = found[2:] if cached else found[:2]
    assert sum(name.endswith(".py") for name in bare["files"]) == 2
    assert {name.partition("/")[0] for name in bare["files"] if name.endswith("/")} == {"fxgraph", "aotautograd"}
    assert bare["counters"]["aot_autograd"].get("autograd_cache_hit", 0) == cached
    del recorded["steps"], recorded["notes"], recorded["asked"], bare["asked"]
    assert recorded == bare
