"""Smaller blocks and larger GPUs: the last requests before an error are replayed with them, up to the request.

The expected verdicts follow from PyTorch's rules: a request of 10 MiB or more has a segment of its own, rounded up to
2 MiB; smaller ones share segments of 20 MiB.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from gpuledger.analyze.memory.failures.failed_request import FailedState, FreeBytes
from gpuledger.analyze.memory.failures.oom_cause import Evidence
from gpuledger.analyze.memory.failures.oom_remedies import Remedy, find_remedies
from gpuledger.analyze.memory.failures.replayed_settings import FailureReplay
from gpuledger.analyze.memory.failures.smaller_blocks import SmallerBlocks
from gpuledger.model.flight_facts import FailedAllocation
from gpuledger.model.manifest import OptimizerFacts

MIB = 1 << 20
BASE = 0x7F00_0000_0000
HALVE = "halve the batch size or the length of sequences"
CHECKPOINT = "checkpoint activations"
EIGHT_BITS = "use 8-bit optimizer states"
GPUS = (("small", 300 * MIB), ("same", 400 * MIB), ("larger", 480 * MIB), ("largest", 2000 * MIB))
Event = tuple[str, int, float, str]
"""Action, number of the block, MiB, category."""

TRAINING: list[Event] = [
    *(("alloc", number, 12, "activation") for number in range(20)),
    *(("alloc", number, 12, "optimizer_state") for number in range(20, 30)),
]


def replay_of(
    events: list[Event], tried: int, capacity: int, *, cut: bool = False, is_part: bool = False
) -> FailureReplay:
    """Return the replay of an error. ``cut`` leaves the events out; ``is_part``: batches are parts of the input."""
    freed = {number for action, number, *_ in events if action != "alloc"}
    live = [event for event in events if event[1] not in freed]
    rows = {
        "failure_blocks": [
            {
                "failure_id": 0,
                "segment_address": BASE,
                "address": BASE + number,
                "requested_bytes": round(size * MIB),
                "state": "allocated",
                "category": category,
                "phase": "setup" if category == "input" else "forward",
            }
            for _, number, size, category in live
        ],
        "failure_segments": [{"failure_id": 0, "address": BASE, "bytes": capacity * MIB, "stream": 0, "pool_id": 0}],
        "failure_events": [
            {"failure_id": 0, "action": action, "address": BASE + number, "bytes": round(size * MIB), "stream": 0}
            for action, number, size, _ in events
        ],
    }
    tables = {name: pa.Table.from_pylist(of_table) for name, of_table in rows.items()}
    if cut:
        empty = pa.table({name: pa.array([], pa.int64()) for name in tables["failure_events"].column_names})
        tables["failure_events"] = empty
        tables["blocks"] = pa.table(
            {
                name: pa.array([], pa.int64())
                for name in ("device_idx", "address", "requested_bytes", "stream", "alloc_index", "alloc_ns",
                             "free_requested_index", "free_requested_ns")
            }
        )  # fmt: skip
    manifest = SimpleNamespace(inputs=SimpleNamespace(is_part=is_part))
    rank: Any = SimpleNamespace(table=lambda name, columns: tables[name].select(list(columns)), manifest=manifest)
    return FailureReplay(rank, failure(tried))


def failure(tried: int, **changed: Any) -> FailedAllocation:
    sizes = {"tried_bytes": tried * MIB, "total_bytes": 400 * MIB, "free_bytes": 0}
    return FailedAllocation(device_idx=0, failure_id=0, step=9, **{**sizes, **changed})


def remedies(
    tried: int = 60, *, cut: bool = False, gpus: Any = (), is_sharded: bool = False, **changed: Any
) -> dict[str, Remedy]:
    """Return the remedies of a training in a GPU of 400 MiB, by their action."""
    prefix = "sharded_" if is_sharded else ""
    sizes = {"activation": 240 * MIB, f"{prefix}optimizer_state": 120 * MIB, f"{prefix}weight": 60 * MIB}
    state = FailedState(400 * MIB, 360 * MIB, 30, sizes, {}, 1.0, FreeBytes(), 0)
    of_evidence = {name: changed.pop(name) for name in ("optimizers", "state", "has_batch") if name in changed}
    training = [(*one[:3], prefix + one[3] if one[3] == "optimizer_state" else one[3]) for one in TRAINING]
    replay = replay_of(training, tried, 400, cut=cut)
    evidence = Evidence(
        failure(tried, **changed), state, 400 * MIB, None, None, (), None, replay, gpus=gpus
    )  # fmt: skip
    return {one.action: one for one in find_remedies(replace(evidence, **of_evidence))}


@pytest.mark.parametrize("is_sharded", [False, True])
def test_each_change_of_a_training_is_replayed(is_sharded: bool) -> None:
    found = remedies(is_sharded=is_sharded)
    assert [found[name].fits for name in (HALVE, CHECKPOINT, EIGHT_BITS)] == [True, True, True]
    assert [found[name].saving_bytes // MIB for name in (HALVE, CHECKPOINT, EIGHT_BITS)] == [120, 192, 90]
    assert [found[name].note for name in (HALVE, CHECKPOINT, EIGHT_BITS)] == [""] * 3


def test_an_input_without_a_batch_is_processed_in_parts() -> None:
    found = remedies(has_batch=False)
    assert HALVE not in found
    assert found["process the input in two parts"].saving_bytes == remedies()[HALVE].saving_bytes


def test_a_change_that_frees_too_little_does_not_fit() -> None:
    found = remedies(tried=200)  # 270 MiB are left beside 8-bit states, 240 MiB of half a batch and 100 MiB
    assert [found[name].fits for name in (HALVE, CHECKPOINT, EIGHT_BITS)] == [True, True, False]


def test_a_smaller_batch_leaves_the_requests_of_the_optimizer_as_they_are() -> None:
    assert remedies(tried=200, in_optimizer=True)[HALVE].fits is False
    assert remedies(tried=200)[HALVE].fits is True


def test_enough_bytes_in_pieces_that_are_too_small_do_not_fit() -> None:
    """An activation stays in each segment of 20 MiB, from which larger blocks were freed."""
    mixed: list[Event] = []
    for number in range(0, 40, 2):
        mixed += [("alloc", number, 9.5, "activation"), ("alloc", number + 1, 9.5, "")]
    mixed += [("free_requested", number, 9.5, "") for number in range(1, 40, 2)]
    replay = replay_of(mixed, 150, 420)
    assert replay.unknown_reason == ""
    smaller = SmallerBlocks({"activation": 0.9})
    assert replay.fits_with(smaller) is False  # though 171 MiB of 400 MiB are in use
    assert replay.fits_with(SmallerBlocks({"activation": 0.01})) is True


def test_small_states_stay_as_they_are() -> None:
    replay = replay_of(TRAINING, 60, 400)
    assert replay.saved_bytes(SmallerBlocks({"optimizer_state": 0.25}, least_bytes=13 * MIB)) == 0


def test_what_cannot_be_replayed_is_judged_by_its_bytes() -> None:
    found = remedies(cut=True)
    assert found[HALVE].fits is True
    assert found[HALVE].note == "by its bytes, not replayed"


def test_the_smallest_gpu_is_named_on_which_the_request_would_have_fitted() -> None:
    assert remedies(gpus=GPUS)["use a GPU with more memory, such as larger (480.0 MiB)"].fits is True
    assert remedies(tried=150, gpus=GPUS)["use a GPU with more memory, such as largest (2.0 GiB)"].fits is True
    assert remedies(tried=3000, gpus=GPUS)["use largest, the largest GPU that is known"].fits is False


def test_no_other_gpu_is_named_where_the_process_limits_itself() -> None:
    assert not any("GPU" in action for action in remedies(gpus=GPUS, limit_frac=0.5))


def optimizer(module: str) -> OptimizerFacts:
    return OptimizerFacts(name=module.rpartition(".")[2], step_module=module)


@pytest.mark.parametrize(
    ("module", "advised"),
    [
        ("torch.optim.adamw", True),
        ("lion_pytorch.lion", True),
        ("torch.optim.adadelta", False),
        ("deepspeed.ops.adam.fused_adam", True),
        ("deepspeed.ops.adam.cpu_adam", False),
        ("deepspeed.runtime.fp16.onebit.adam", False),
    ],
)
def test_8_bit_states_are_advised_where_an_optimizer_has_them(module: str, advised: bool) -> None:
    assert (EIGHT_BITS in remedies(optimizers=(optimizer(module),))) is advised


@pytest.mark.parametrize(("state_mib", "advised"), [(30, False), (120, True), (900, False)])
def test_8_bit_states_are_advised_for_states_of_their_size(state_mib: int, advised: bool) -> None:
    """Of 60 MiB of weights with 32 bits: states with 2 bytes for each number are small, those with 60 are L-BFGS's."""
    sizes = {"weight": 60 * MIB, "optimizer_state": state_mib * MIB}
    state = FailedState(400 * MIB, 360 * MIB, 30, sizes, {}, 1.0, FreeBytes(), 0)
    assert (EIGHT_BITS in remedies(state=state)) is advised


@pytest.mark.parametrize(("is_part", "saved"), [(True, 30), (False, 80)])
def test_a_whole_data_set_does_not_get_smaller_with_the_batch(is_part: bool, saved: int) -> None:
    events: list[Event] = [("alloc", 0, 100, "input"), ("alloc", 1, 60, "activation")]
    halved = SmallerBlocks({"input": 0.5, "activation": 0.5})
    assert replay_of(events, 60, 200, is_part=is_part).saved_bytes(halved) == saved * MIB
    sizes = {"input": 100 * MIB, "activation": 60 * MIB}
    data_bytes = 100 * MIB if is_part else 0
    state = FailedState(200 * MIB, 160 * MIB, 2, sizes, {}, 1.0, FreeBytes(), 0, data_bytes=data_bytes)
    found = find_remedies(Evidence(failure(60), state, 400 * MIB, None, None, (), None))
    assert {one.action: one.saving_bytes for one in found}[HALVE] == saved * MIB
