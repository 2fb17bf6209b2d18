"""The compiler does the same in a recorded program as in a bare one: graphs, breaks, recompilations and cache keys."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

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


@pytest.fixture
def generated(made_once: Callable[[str, Callable[[], str]], str]) -> list[dict[str, Any]]:
    """What the compiler has done, as :func:`compiled_pairs.compare` has it."""
    (found,) = json.loads(made_once("generated-pairs", lambda: pairs("inductor", MATRICES))).values()
    for one in found:
        del one["asked"]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["compiled", "cached", "cached, read-only"])
def test_generated_code_and_cache_keys_are_the_same(kind: str, generated: list[dict[str, Any]]) -> None:
    first = 2 * ("compiled", "cached", "cached, read-only").index(kind)
    bare, recorded = generated[first : first + 2]
    assert sum(name.endswith(".py") for name in bare["files"]) == 2
    assert {name.partition("/")[0] for name in bare["files"] if name.endswith("/")} == {"fxgraph", "aotautograd"}
    assert bare["counters"]["aot_autograd"].get("autograd_cache_hit", 0) == (kind != "compiled")
    assert recorded["notes"] == []
    assert recorded == {**bare, "steps": recorded["steps"], "notes": []}


def test_processes_that_fill_one_cache_at_once_generate_the_same_and_a_later_one_finds_it(
    generated: list[dict[str, Any]],
) -> None:
    bare, *_, one, other, later = generated
    for found in (one, other, later):
        assert (found["values"], found["graphs"], found["notes"]) == (bare["values"], bare["graphs"], [])
        assert set(found["files"]) <= set(bare["files"])
    assert later["files"] == bare["files"]
    assert later["counters"]["aot_autograd"]["autograd_cache_hit"] == 1
