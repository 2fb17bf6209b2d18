"""Measuring on the CPU into a real database: what is lacking, in a random order, resumable, with failures kept."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from operator_keys import key_for, tasks_of_keys
from present import present

from gpuledger.cards.card import BareCard
from gpuledger.errors import NoDeviceError, UsageError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import Method, Mode
from gpuledger.ops.database.operator_database import OperatorDatabase, open_database
from gpuledger.ops.database.records import Record
from gpuledger.ops.measure.copies import Copy, count_copies, make_copies, why_no_graph
from gpuledger.ops.measure.fill import fill
from gpuledger.ops.measure.measure import Outcome, Progress, measure, shuffled
from gpuledger.ops.measure.measured_device import Device, find_device, refuse_busy
from gpuledger.ops.measure.one import CardLostError, measure_one
from gpuledger.ops.measure.plan import missing_tasks, needs_energy, tasks_of
from gpuledger.ops.totals.sum import sum_up
from gpuledger.ops.workloads.workload import Use, Workload

aten = torch.ops.aten
QUICK = Method(
    target_frac=0.5, warm_up_ns=100_000, block_ns=100_000, gap_ns=0, least_blocks=3, most_blocks=5, energy=False
)


@pytest.fixture(scope="module")
def place() -> Device:
    return replace(find_device("cpu"), cache_bytes=1 << 12)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[OperatorDatabase]:
    with_database = open_database(tmp_path / "operators.db")
    yield with_database
    with_database.close()


def relu(size: int) -> OperatorKey:
    return key_for(aten.relu.default, torch.ones(size))


def keys_of(count: int) -> list[OperatorKey]:
    return [relu(size) for size in range(1, count + 1)]


def inputs_of(call: Copy) -> tuple[Any, ...]:
    """Return what a call hands to its operator."""
    given: list[tuple[Any, ...]] = []
    operator, call.function = call.function, lambda *args, **_: given.append(args)
    call()
    call.function = operator
    return given[0]


def test_a_record_holds_median_interval_blocks_and_how_it_was_made(place: Device) -> None:
    record = measure_one(key_for(aten.mm.default, torch.ones(32, 16), torch.ones(16, 8)), Mode.HOT, place, QUICK)
    assert record.status == "ok"
    assert 0 < present(record.time_low_ns) <= present(record.time_median_ns) <= present(record.time_high_ns)
    assert (record.flops, record.bytes) == (2 * 32 * 16 * 8, 4 * (32 * 16 + 16 * 8 + 32 * 8))
    assert (record.method["mode"], record.method["how"], record.method["copies"]) == ("hot", "cpu", 1)
    summary, *blocks = record.blocks
    assert summary["count"] == len(blocks) >= 3
    assert summary["mean_3_sigma_ns"] > 0
    assert record.energy_median_j is None


def test_what_fails_is_recorded_with_its_reason_and_the_rest_goes_on(database: OperatorDatabase, place: Device) -> None:
    broken = OperatorKey("aten.mm.default", ({"shape": [2, 3], "dtype": "float32", "stride": [3, 1]},) * 2)
    unknown = OperatorKey("aten.no_such_thing.default", ())
    huge = OperatorKey("aten.relu.default", ({"shape": [1 << 45], "dtype": "float32", "stride": [1]},))
    outcome = measure(tasks_of_keys([broken, unknown, huge, relu(4)]), database, place, QUICK)
    assert (outcome.measured, outcome.failed, outcome.left) == (1, 3, 0)
    reasons = {record.key_digest: record.reason for record in database.records() if record.status == "failed"}
    assert "RuntimeError" in reasons[broken.digest]
    assert "no such operator" in reasons[unknown.digest]
    assert reasons[huge.digest].startswith("out of memory: its inputs need")


def test_memory_that_ends_in_the_middle_of_a_measurement_is_said_first_and_the_rest_goes_on(
    database: OperatorDatabase, place: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(key: OperatorKey, mode: Mode, place: Device) -> list[Copy]:
        if key == relu(1):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")
        return make_copies(key, mode, place)

    monkeypatch.setattr("gpuledger.ops.measure.one.make_copies", full)
    outcome = measure(tasks_of_keys([relu(1), relu(2)]), database, place, QUICK)
    assert (outcome.measured, outcome.failed) == (1, 1)
    (failed,) = (record for record in database.records() if record.status == "failed")
    assert failed.reason == "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB."


def test_an_operator_whose_output_depends_on_its_data_is_measured(database: OperatorDatabase, place: Device) -> None:
    key = key_for(aten.nonzero.default, torch.ones(64))
    assert measure(tasks_of_keys([key]), database, place, QUICK).measured == 1
    assert why_no_graph(Copy(aten.nonzero.default, [torch.ones(64)], {}, writes=False))
    assert not why_no_graph(Copy(aten.relu.default, [torch.ones(64)], {}, writes=False))


@pytest.mark.parametrize(
    ("dropout_p", "seed_on", "why"),
    [(0.1, "cpu", "its random seed is in CPU memory"), (0.0, "cpu", ""), (0.1, "meta", "")],
)
def test_a_seed_in_cpu_memory_is_in_no_graph(dropout_p: float, seed_on: str, why: str) -> None:
    """A graph would give the GPU the address of the seed: an illegal access, after which nothing can be measured."""
    tensor = torch.empty(2, 4, 8, 16, device="meta")
    seed = torch.zeros((), dtype=torch.int64, device=seed_on)
    args = [*[tensor] * 4, None, tensor, tensor[..., 0], seed, seed, dropout_p, [True, True, True, False]]
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    assert why_no_graph(Copy(backward, args, {"scale": 0.125}, writes=False)) == why


def test_nothing_is_measured_twice_and_a_failure_is_not_tried_again(database: OperatorDatabase, place: Device) -> None:
    tasks = tasks_of_keys([*keys_of(3), OperatorKey("aten.no_such_thing.default", ())])
    measure(tasks, database, place, QUICK)
    assert missing_tasks(tasks, database, place, need_energy=False) == []
    more = tasks_of_keys(keys_of(5))
    lacking = missing_tasks(more, database, place, need_energy=False)
    assert {task.key for task in lacking} == {relu(4), relu(5)}
    measure(lacking, database, place, QUICK)
    assert missing_tasks(more, database, place, need_energy=False) == []


def test_what_another_process_measures_meanwhile_is_not_measured_again(
    database: OperatorDatabase, place: Device
) -> None:
    tasks = tasks_of_keys(keys_of(4))
    others: list[Outcome] = []

    def other(progress: Progress) -> None:  # it takes what is left once one is measured here
        if progress.done == 1 and not others:
            others.append(measure(missing_tasks(tasks, database, place, need_energy=False), database, place, QUICK))

    found = measure(tasks, database, place, QUICK, on_progress=other)
    assert (found.measured, found.failed, found.left) == (1, 0, 0)
    assert others[0].measured == 3
    records = database.records()
    assert {record.key_digest for record in records} == {task.key.digest for task in tasks}
    again = found.repeated + others[0].repeated  # where this machine drifted
    assert len(records) == 4 + again


def test_a_stop_at_any_moment_keeps_every_record_so_far(database: OperatorDatabase, place: Device) -> None:
    tasks = tasks_of_keys(keys_of(6))

    def stop(progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(tasks, database, place, QUICK, on_progress=stop)
    assert len(database.records()) == 3
    rest = missing_tasks(tasks, database, place, need_energy=False)
    assert measure(rest, database, place, QUICK).measured == 3
    assert {record.key_digest for record in database.records()} == {task.key.digest for task in tasks}


def test_no_operator_is_begun_after_the_budget(database: OperatorDatabase, place: Device) -> None:
    outcome = measure(tasks_of_keys(keys_of(4)), database, place, QUICK, budget_ns=0)
    assert (outcome.measured, outcome.left) == (0, 4)
    assert database.records() == []


def test_progress_counts_up_and_tells_the_time_left(database: OperatorDatabase, place: Device) -> None:
    told: list[Progress] = []
    measure(tasks_of_keys(keys_of(3)), database, place, QUICK, on_progress=told.append)
    assert [(one.done, one.total) for one in told] == [(0, 3), (1, 3), (2, 3)]
    assert told[0].left_ns is None
    assert present(told[2].left_ns) > 0
    assert told[0].operator == "relu"


def test_a_seed_decides_the_order_and_only_the_order() -> None:
    tasks = tasks_of_keys(keys_of(20))
    one, same, other = shuffled(tasks, 1), shuffled(tasks[::-1], 1), shuffled(tasks, 2)
    assert one == same != other
    assert set(one) == set(other) == set(tasks)


def let_reference_take(monkeypatch: pytest.MonkeyPatch, times_ns: Sequence[float]) -> None:
    """Have the reference operator take these times, one after the other."""
    import gpuledger.ops.measure.measurement_session as module

    times = iter(times_ns)

    def faked(key: OperatorKey, mode: Mode, place: Device, method: Method, clock_ns: Callable[[], int]) -> Record:
        record = measure_one(key, mode, place, method, clock_ns)
        if key != module.REFERENCE:
            return record
        time_ns = next(times)
        return replace(record, time_low_ns=time_ns, time_median_ns=time_ns, time_high_ns=time_ns)

    monkeypatch.setattr(module, "measure_one", faked)


def test_where_the_reference_drifted_operators_are_measured_again(
    database: OperatorDatabase, place: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_reference_take(monkeypatch, [100.0, 120.0, 121.0])
    outcome = measure(tasks_of_keys(keys_of(25)), database, place, QUICK)
    assert outcome.repeated == 20  # between the first two references, not after
    assert outcome.drift.worst_frac == pytest.approx(0.2)
    assert len(database.records()) == 45


def test_what_failed_is_not_tried_again_where_the_reference_drifted(
    database: OperatorDatabase, place: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_reference_take(monkeypatch, [100.0, 120.0])
    bad = OperatorKey("aten.no_such_thing.default", ())
    outcome = measure(tasks_of_keys([*keys_of(3), bad]), database, place, QUICK)
    assert (outcome.measured, outcome.failed, outcome.repeated) == (3, 1, 3)
    assert [record.key_digest for record in database.records() if record.status == "failed"] == [bad.digest]


def test_what_drifted_is_not_measured_again_past_the_budget(
    database: OperatorDatabase, place: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_reference_take(monkeypatch, [100.0, 120.0])
    done_ns = iter(range(100))

    def clock_ns() -> int:
        """Time stands still until all operators are done."""
        return 0 if len(database.records()) < 3 else 10 + next(done_ns)

    outcome = measure(tasks_of_keys(keys_of(3)), database, place, QUICK, budget_ns=12, clock_ns=clock_ns)
    assert (outcome.measured, outcome.left) == (3, 0)
    assert outcome.drift.worst_frac == pytest.approx(0.2)
    assert outcome.repeated < 3


def test_a_card_that_is_lost_ends_the_measurement_after_its_record(
    database: OperatorDatabase, place: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpuledger.ops.measure.measurement_session as module

    def lost(key: OperatorKey, mode: Mode, place: Device, method: Method, clock_ns: Callable[[], int]) -> Record:
        if key == relu(1):
            raise CardLostError("cuda:0: an illegal memory access was encountered")
        return measure_one(key, mode, place, method, clock_ns)

    monkeypatch.setattr(module, "measure_one", lost)
    with pytest.raises(CardLostError):
        measure(tasks_of_keys([relu(1)]), database, place, QUICK)
    (record,) = database.records()
    assert (record.status, record.reason) == ("failed", "cuda:0: an illegal memory access was encountered")


def test_rotating_inputs_pass_through_the_cache_three_times(place: Device) -> None:
    small = replace(place, cache_bytes=10_000)
    key = relu(500)  # 4,000 bytes read and written
    assert count_copies(key, Mode.HOT, small) == 1
    assert count_copies(key, Mode.ROTATING, small) == math.ceil(30_000 / 4_000)
    assert count_copies(key, Mode.ROTATING, replace(small, free_bytes=lambda: 40_000)) == 2
    copies = make_copies(key, Mode.ROTATING, small)
    outputs: set[Any] = {call().data_ptr() for call in copies}  # type: ignore[attr-defined]  # a tensor
    inputs = {inputs_of(call)[0].data_ptr() for call in copies}
    assert len(inputs) == len(copies)
    assert outputs.isdisjoint(inputs)


def test_copies_have_the_same_values_and_strides_and_what_was_written_is_put_back(place: Device) -> None:
    x = torch.ones(8, 4).t()
    key = key_for(aten.add_.Tensor, x, x)
    described = dict(key.inputs[0])
    key = OperatorKey(key.operator, (described, {**described, "same": 0}))
    one, other, *_ = make_copies(key, Mode.ROTATING, replace(place, cache_bytes=1000))
    (first, second), (others_first, others_second) = inputs_of(one), inputs_of(other)
    assert first is second
    assert others_first is others_second
    assert others_first.stride() == x.stride()
    assert torch.equal(first, others_first)
    before = first.clone()
    one()
    assert not torch.equal(first, before)
    one.restore()
    assert torch.equal(first, before)


def test_reuse_decides_which_modes_are_measured() -> None:
    uses = [Use(relu(1), 2, (), 10.0), Use(relu(2), 5, (), None), Use(relu(3), 1, (), 1000.0)]
    tasks = {(task.key, task.mode) for task in tasks_of(uses, 1000)}
    assert tasks == {
        (relu(1), Mode.HOT), (relu(2), Mode.ROTATING), (relu(3), Mode.HOT), (relu(3), Mode.ROTATING),
    }  # fmt: skip


def test_energy_is_wanted_of_the_few_that_hold_most_of_the_time() -> None:
    uses = tuple(Use(relu(size), 1) for size in (1, 2, 3))
    times = {relu(1).digest: 80.0, relu(2).digest: 15.0, relu(3).digest: 5.0}
    workload = Workload("model", "inference", uses)
    assert needs_energy(workload, times, 0.8) == {relu(1).digest}
    assert needs_energy(workload, times, 0.9) == {relu(1).digest, relu(2).digest}
    assert needs_energy(workload, times, 1.0) == set(times)


def test_a_workload_is_filled_once_and_summed(database: OperatorDatabase, place: Device) -> None:
    uses = tuple(Use(relu(size), size, (), None) for size in (100, 200))
    workload = Workload("model", "inference", uses)
    filled = fill([workload, workload], database, place, QUICK)
    assert (filled.times.measured, filled.failed, filled.left) == (2, 0, 0)
    assert fill([workload], database, place, QUICK).times.measured == 0
    total = sum_up(workload, database.records(), place.environment)
    assert total.calls_frac == 1.0
    assert total.busy_ns == pytest.approx(sum(line.use.count * present(line.cost).time_ns for line in total.lines))


def test_tf32_is_set_as_the_key_says_and_put_back(place: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = torch.ops.aten.relu.default
    monkeypatch.setattr(
        "gpuledger.ops.measure.one.make_copies",
        lambda *args: (seen.append(torch.backends.cuda.matmul.fp32_precision), make_copies(*args))[1],
    )
    before = torch.backends.cuda.matmul.fp32_precision
    measure_one(key_for(real, torch.ones(4), tf32=True), Mode.HOT, place, QUICK)
    measure_one(key_for(real, torch.ones(4), tf32=False), Mode.HOT, place, QUICK)
    assert seen == ["tf32", "ieee"]
    assert torch.backends.cuda.matmul.fp32_precision == before


class BusyCard(BareCard):
    def __init__(self, *processes: tuple[int, int | None]) -> None:
        super().__init__(0, "Busy", "GPU-busy")
        self.processes = processes

    def read_processes(self) -> list[tuple[int, int | None]]:
        return list(self.processes)


def test_a_card_with_another_process_is_refused() -> None:
    import os

    refuse_busy(BusyCard())
    refuse_busy(BusyCard((os.getpid(), 1 << 30)))
    refuse_busy(BusyCard((99999, 512 << 20)), ours=(99999,))  # a campaign's own driver
    with pytest.raises(NoDeviceError, match=r"GPU 0: in use by process 99999 \(512 MiB\)") as caught:
        refuse_busy(BusyCard((99999, 512 << 20)))
    assert "--allow-busy" in present(caught.value.hint)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown device"):
        find_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(NoDeviceError, match="no such GPU"):
            find_device("cuda:0")


def test_a_place_tells_what_it_is(place: Device) -> None:
    assert place.environment.card
    assert place.environment.flags["threads"] == torch.get_num_threads()
    assert place.cache_bytes > 0
    assert place.free_bytes() > 0
    assert not place.on_card
