"""The first sentence on an out-of-memory error: one situation for each rule, and none for its neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from present import present

from gpuledger.analyze.memory.failures.failed_request import FailedState, FreeBytes
from gpuledger.analyze.memory.failures.oom_cause import RULES, Evidence, find_cause
from gpuledger.analyze.memory.growth import Growth
from gpuledger.analyze.memory.lines.loop_growth import LoopGrowth
from gpuledger.model.flight_facts import FailedAllocation, KernelKill

GIB = 1 << 30
STATE = FailedState(76 * GIB, 75 * GIB, 900, {"activation": 60 * GIB, "weight": 10 * GIB}, {}, 1.0, FreeBytes(), 0)
FAILURE = FailedAllocation(device_idx=0, tried_bytes=2 * GIB, total_bytes=80 * GIB, free_bytes=GIB, step=812)
USUAL = Evidence(FAILURE, STATE, 80 * GIB, 0, None, (8, 1024), None)
GROWTH = Growth(
    rank=0, device_idx=0, step_bytes=80e6, since_step=4, last_step=811, grown_bytes=64 * GIB, limit_bytes=80 * GIB,
    steps_left=None, holder=None,
)  # fmt: skip
LOOP = LoopGrowth("serve.py:9 main", 30, 2 * GIB, 60 * GIB, "serve.py:11 main")
KINDS = {"kept_by_iterations": "growth"}
"""Rules of which the cause has the kind of another one."""


def failing(**changes: Any) -> Evidence:
    return replace(USUAL, failure=replace(FAILURE, **changes))


CASES = {
    "host_killed": (
        failing(
            device_idx=-1,
            tried_bytes=None,
            allocated_bytes=30 * GIB,
            total_bytes=32 * GIB,
            killed=KernelKill(processes=1, of_program=True, at_limit=True),
        ),
        "The kernel ended the program, because host memory reached the limit of 32.0 GiB of its job or container "
        "(cgroup). The process used 30.0 GiB when this was last measured",
    ),
    "library": (
        replace(failing(library="cuBLAS", tried_bytes=None), other_bytes=40 * GIB),
        "cuBLAS could not allocate GPU memory: 1.0 GiB were free after the error; PyTorch reserves 76.0 GiB, of which "
        "1.0 GiB are free; other processes use 40.0 GiB",
    ),
    "host": (
        failing(device_idx=-1, library="PyTorch", allocated_bytes=30 * GIB, total_bytes=32 * GIB, free_bytes=GIB),
        "PyTorch could not allocate 2.0 GiB of host memory: the process uses 30.0 GiB of the 32.0 GiB that it may use; "
        "1.0 GiB are available on the machine",
    ),
    "one_large_request": (failing(tried_bytes=50 * GIB), "One request of 50.0 GiB is 62 % of the 80.0 GiB"),
    "memory_fraction": (failing(total_bytes=20 * GIB, free_bytes=58 * GIB), "only 20.0 GiB of the GPU"),
    "other_processes": (replace(USUAL, other_bytes=40 * GIB), "Other processes use 40.0 GiB"),
    "private_pool": (
        replace(USUAL, state=replace(STATE, free=FreeBytes(private_pool_bytes=6 * GIB))),
        "6.0 GiB of 6.0 GiB in private pools",
    ),
    "growth": (replace(USUAL, growth=GROWTH), "since step 4, 64.0 GiB in total"),
    "fragmentation": (
        replace(USUAL, state=replace(STATE, free=FreeBytes(5 * GIB, 18 << 20, 300))),
        "5.0 GiB are free, but in 300 pieces of at most 18.0 MiB",
    ),
    "optimizer_state": (failing(in_optimizer=True, step=1), "The first optimizer step"),
    "evaluation": (failing(is_training=False, grad_enabled=True), "use torch.no_grad()"),
    "kept_by_iterations": (
        replace(USUAL, loop=LOOP),
        "Memory has grown by 2.0 GiB per iteration of the loop at serve.py:9 main, 60.0 GiB in 30 iterations, "
        "allocated at serve.py:11 main",
    ),
    "larger_inputs": (failing(inputs=((8, 4096),)), "The input of step 812 is 8 × 4,096, usually 8 × 1,024"),
    "larger_step": (
        replace(USUAL, usual_peak_bytes=40 * GIB),
        "Step 812 needs 77.0 GiB, and the median peak of earlier steps is 40.0 GiB: activation 60.0 GiB",
    ),
    "full": (USUAL, "The GPU is full: activation 60.0 GiB, weight 10.0 GiB"),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_cause_is_named(kind: str) -> None:
    evidence, words = CASES[kind]
    found = find_cause(evidence)
    assert (found.kind, words in found.sentence) == (KINDS.get(kind, kind), True), found.sentence


def test_fragmentation_below_a_limit_of_the_process_is_not_the_limit() -> None:
    capped = failing(total_bytes=20 * GIB, free_bytes=58 * GIB)
    pieces = replace(STATE, free=FreeBytes(5 * GIB, 18 << 20, 300))
    assert find_cause(capped).kind == "memory_fraction"
    assert find_cause(replace(capped, state=pieces)).kind == "fragmentation"


LIMITED: dict[str, Any] = {"total_bytes": 20 * GIB, "free_bytes": 58 * GIB}
LIMIT = "The process may use only 20.0 GiB of the GPU (set_per_process_memory_fraction), although 58.0 GiB are free"


@pytest.mark.parametrize("kind", ["growth", "optimizer_state", "evaluation", "kept_by_iterations", "larger_inputs"])
def test_what_fails_at_a_limit_of_the_process_is_told_with_the_limit(kind: str) -> None:
    evidence, words = CASES[kind]
    found = find_cause(replace(evidence, failure=replace(evidence.failure, **LIMITED)))
    assert found.kind == KINDS.get(kind, kind)
    assert words in found.sentence
    assert found.sentence.endswith(f". {LIMIT}")


def test_a_larger_step_at_a_limit_of_the_process_is_told_with_it() -> None:
    found = find_cause(replace(failing(**LIMITED), usual_peak_bytes=40 * GIB))
    assert found.kind == "memory_fraction"
    assert found.sentence.startswith(f"{LIMIT}. Step 812 needs 77.0 GiB")


def test_other_processes_are_not_the_cause_where_the_process_has_a_limit() -> None:
    found = find_cause(replace(failing(**LIMITED), other_bytes=40 * GIB))
    assert (found.kind, found.sentence) == ("memory_fraction", LIMIT)


@pytest.mark.parametrize(("tried_bytes", "kind"), [(GIB // 2, "full"), (2 * GIB, "fragmentation")])
def test_a_small_request_in_full_memory_does_not_fail_of_fragmentation(tried_bytes: int, kind: str) -> None:
    """Some memory is free in pieces in every process that is full."""
    state = replace(STATE, free=FreeBytes(3 * GIB, 1 << 28, 30))
    assert find_cause(replace(failing(tried_bytes=tried_bytes), state=state)).kind == kind


@pytest.mark.parametrize(("steps", "grown_gib", "kind"), [(12, 30, "full"), (12, 40, "growth"), (30, 16, "growth")])
def test_growth_over_few_steps_is_the_cause_if_it_is_most_of_the_memory(steps: int, grown_gib: int, kind: str) -> None:
    growth = replace(GROWTH, since_step=811 - steps, grown_bytes=grown_gib * GIB)
    assert find_cause(replace(USUAL, growth=growth)).kind == kind


def test_what_calls_of_the_model_keep_has_no_line_of_a_loop() -> None:
    found = find_cause(replace(USUAL, loop=replace(LOOP, line="", kept_line="")))
    assert found.kind == "growth"
    assert found.sentence == "Memory has grown by 2.0 GiB per call of the model, 60.0 GiB in 30 calls"


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__.strip("_") for rule in RULES} | {"full"} == set(CASES)


@pytest.mark.parametrize(
    "evidence",
    [
        failing(tried_bytes=GIB),
        replace(USUAL, other_bytes=GIB),
        replace(USUAL, state=replace(STATE, free=FreeBytes(GIB, 1 << 20, 9))),
        failing(in_optimizer=True, step=2),
        failing(is_training=False, grad_enabled=False),
        failing(inputs=((8, 1100),)),
        replace(USUAL, usual_peak_bytes=70 * GIB),
        replace(USUAL, growth=replace(GROWTH, grown_bytes=GIB)),
        replace(USUAL, loop=replace(LOOP, grown_bytes=14 * GIB)),
        replace(USUAL, loop=replace(LOOP, iterations=12, grown_bytes=37 * GIB)),
    ],
)
def test_what_is_usual_is_no_cause(evidence: Evidence) -> None:
    assert find_cause(evidence).kind == "full"


def test_a_request_of_many_times_the_limit_has_no_percentage() -> None:
    cause = present(find_cause(failing(tried_bytes=32_000 * GIB)))
    assert cause.sentence == "One request of 31.2 TiB is 400 times the 80.0 GiB that the process may use"


MAPPED = failing(
    device_idx=-1,
    library="PyTorch",
    allocated_bytes=9 * GIB,
    mapped_bytes=31 * GIB,
    total_bytes=32 * GIB,
    free_bytes=GIB,
)


def test_a_limit_of_the_address_space_is_compared_with_that() -> None:
    """The process can have much less in memory than it has mapped."""
    assert find_cause(MAPPED).sentence == (
        "PyTorch could not allocate 2.0 GiB of host memory: the process uses 31.0 GiB of the 32.0 GiB of address space "
        "that it may use (ulimit -v); 1.0 GiB are available on the machine"
    )
    grown = find_cause(replace(MAPPED, growth=GROWTH)).sentence
    assert grown.endswith("The process may use 32.0 GiB of address space (ulimit -v)")
