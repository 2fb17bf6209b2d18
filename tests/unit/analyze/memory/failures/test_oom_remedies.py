"""What would have let a request pass, where the process limits itself and where others use the GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpuledger.analyze.memory.failures.failed_request import FailedState, FreeBytes
from gpuledger.analyze.memory.failures.oom_cause import Evidence
from gpuledger.analyze.memory.failures.oom_remedies import Remedy, find_remedies
from gpuledger.analyze.memory.growth import Growth, limit_bytes_of
from gpuledger.model.flight_facts import FailedAllocation, Holder
from gpuledger.model.manifest import DeviceFacts, RankManifest

GIB = 1 << 30
CAPACITY = 80 * GIB
STATE = FailedState(19 * GIB, 18 * GIB, 900, {"activation": 10 * GIB}, {}, 1.0, FreeBytes(), 0)
LIMITED = FailedAllocation(device_idx=0, tried_bytes=2 * GIB, total_bytes=20 * GIB, free_bytes=40 * GIB, step=33)
FULL = replace(LIMITED, total_bytes=CAPACITY, free_bytes=GIB)
GROWTH = Growth(
    rank=0, device_idx=0, step_bytes=32 << 20, since_step=1, last_step=32, grown_bytes=8 * GIB, limit_bytes=20 * GIB,
    steps_left=3, holder=None,
)  # fmt: skip
RAISE = "raise the process's limit to more than 21.0 GiB (torch.cuda.set_per_process_memory_fraction())"
END = "end other processes on the GPU"


def remedies(failure: FailedAllocation, other_bytes: int | None = None, growth: Growth | None = None) -> list[Remedy]:
    return list(find_remedies(Evidence(failure, STATE, CAPACITY, other_bytes, growth, (), None)))


def test_a_higher_limit_comes_first_and_other_processes_are_left_alone() -> None:
    found = remedies(LIMITED, other_bytes=20 * GIB)
    assert found[0] == Remedy(RAISE, 0, True)
    assert END not in [one.action for one in found]


def test_a_limit_by_fraction_is_the_same() -> None:
    by_fraction = replace(LIMITED, total_bytes=CAPACITY, limit_frac=0.25)
    assert remedies(by_fraction)[0] == Remedy(RAISE, 0, True)


def test_a_leak_is_freed_before_the_limit_is_raised() -> None:
    found = remedies(LIMITED, growth=GROWTH)
    assert [one.action for one in found[:2]] == ["free what grows step after step", RAISE]


def test_steps_are_left_until_the_limit_of_the_process() -> None:
    manifest = RankManifest(
        schema_version=1, devices=(DeviceFacts(device_idx=0, total_bytes=CAPACITY),), oom=(LIMITED, FULL)
    )
    rank = SimpleNamespace(manifest=manifest)
    assert limit_bytes_of(rank, 0) == 20 * GIB  # type: ignore[arg-type]  # only the manifest is read
    rank.manifest = replace(manifest, oom=(FULL,))
    assert limit_bytes_of(rank, 0) == CAPACITY  # type: ignore[arg-type]


def test_a_higher_limit_does_not_help_on_a_full_gpu() -> None:
    assert remedies(replace(LIMITED, free_bytes=GIB))[0] == Remedy(RAISE, 0, False)


@pytest.mark.parametrize(("other", "fits"), [(20 * GIB, True), (GIB // 2, False)])
def test_other_processes_count_where_the_gpu_is_full(other: int, fits: bool) -> None:
    found = {one.action: one for one in remedies(FULL, other_bytes=other)}
    assert found[END] == Remedy(END, other, fits)
    assert not any(action.startswith("raise") for action in found)


def test_within_its_limit_a_process_needs_only_the_memory_below_it() -> None:
    both = replace(LIMITED, free_bytes=GIB // 2)
    found = {one.action: one for one in remedies(both, other_bytes=20 * GIB)}
    assert found[END].fits is False  # 20.5 GiB would be free, and 1 GiB is left below the limit


@pytest.mark.parametrize(
    ("total_bytes", "limit_frac", "limit"),
    [
        (20 * GIB, None, 20 * GIB),
        (CAPACITY, 0.5, 40 * GIB),
        (CAPACITY, 1.0, None),
        (79 * GIB, None, None),
        (0, None, None),
    ],
)
def test_the_own_limit_is_what_the_program_set(total_bytes: int, limit_frac: float | None, limit: int | None) -> None:
    failure = replace(LIMITED, total_bytes=total_bytes, limit_frac=limit_frac)
    assert failure.own_limit_bytes(CAPACITY) == limit
    assert failure.own_limit_bytes(None) is None


HELD = replace(GROWTH, holder=Holder(kind="list", name="curve", path="run.curve", length=32, more=8, content="graph"))


def test_a_leak_comes_first_and_what_else_fits_only_postpones_the_error() -> None:
    first, *others = remedies(LIMITED, growth=HELD)
    assert first == Remedy("free what grows step after step", 8 * GIB, True, "held by list run.curve")
    fitting = [one for one in others if one.fits]
    assert {one.action for one in fitting} >= {RAISE, "halve the batch size or the length of sequences"}
    assert all(one.note.endswith("only postpones the error, because memory grows") for one in fitting)
    assert not any("postpones" in one.note for one in others if not one.fits)


def test_beside_a_small_growth_other_changes_last() -> None:
    """Memory grows by less than the request, so that it is not the cause."""
    found = remedies(LIMITED, growth=replace(HELD, grown_bytes=GIB))
    assert not any("postpones" in one.note for one in found)
