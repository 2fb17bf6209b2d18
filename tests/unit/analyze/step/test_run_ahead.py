"""Step times and busy time where the host queues work and does not wait, on a simulated GPU whose times are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from folders import RECORDINGS
from hypothesis import given
from hypothesis import strategies as st
from present import present

from gpuledger.analyze.step.gpu_steps import gpu_steps
from gpuledger.analyze.step.overhead import find_overhead
from gpuledger.analyze.step.rates import find_rates
from gpuledger.analyze.step.step_parts import step_parts
from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.times import break_down_time
from gpuledger.model.imported import rows_to_table
from gpuledger.model.manifest import World
from gpuledger.model.pass_facts import EnergyEdges
from gpuledger.model.run import KeptRank
from gpuledger.services.runs import load

Calls = tuple[tuple[int, int, int, int], ...]
MS = 1_000_000
BASE_NS = 1_700_000_000 * 1000 * MS
PROFILED = (4, 5)
STEPS, KERNELS = 40, 10


@dataclass
class SimulatedGpu:
    """Runs kernels one after the other. The host launches them, and waits only if ``queue`` are pending.

    Args:
        launch_ns: Time of the host per launch.
        kernel_ns: Time of a kernel.
        queue: Number of launches that can be pending.
        waits: Whether the host waits for the GPU at the end of each step.
        waits_every: Number of steps after which the host waits for the GPU; 0 for never.
    """

    launch_ns: int
    kernel_ns: int
    queue: int = 1000
    waits: bool = False
    waits_every: int = 0

    def __post_init__(self) -> None:
        self.host_ns = BASE_NS
        self.ends: list[int] = [BASE_NS]
        self.steps = 0

    def step(self, kernel_ns: int | None = None) -> list[tuple[int, int]]:
        """Return start and end of the step's kernels."""
        found = []
        for _ in range(KERNELS):
            self.host_ns += self.launch_ns
            if len(self.ends) > self.queue:
                self.host_ns = max(self.host_ns, self.ends[-self.queue])
            start = max(self.host_ns, self.ends[-1])
            self.ends.append(start + (kernel_ns or self.kernel_ns))
            found.append((start, self.ends[-1]))
        self.steps += 1
        if self.waits or (self.waits_every and self.steps % self.waits_every == 0):
            self.synchronize()
        return found

    def synchronize(self) -> int:
        self.host_ns = max(self.host_ns, self.ends[-1])
        return self.host_ns


def recorded(gpu: SimulatedGpu, *, energy: bool, profiled_ns: int | None = None) -> KeptRank:
    """Return a recording: the program waits for the GPU around the profiled steps and around the energy measurement."""
    base = load(RECORDINGS / "passes" / "neumf-training.ledger").rank(0)
    steps: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    edges_ns = []
    for number in range(1, STEPS + 1):
        if number in (PROFILED[0], 11, STEPS):
            edges_ns.append(gpu.synchronize())
        start_ns = gpu.host_ns
        timed = PROFILED[0] <= number <= PROFILED[1]
        kernels = gpu.step(profiled_ns if timed else None)
        steps.append(
            {"step": number, "device_idx": 0, "kind": "optimizer", "recorded": number < 4, "paused_ns": 0}
            | {"start_ns": start_ns, "end_ns": gpu.host_ns, "start_index": None, "end_index": None}
        )
        spans += _spans(number, kernels) if timed else []
        if number == PROFILED[1]:
            gpu.synchronize()
    edges = EnergyEdges(
        cards=((0, "GPU-0"),), first_step=11, last_step=STEPS - 1, start_ns=edges_ns[1], end_ns=edges_ns[2]
    )
    manifest = replace(base.manifest, time_steps=PROFILED, energy_pass=edges if energy else None, energy=None)
    tables = {"steps": rows_to_table("steps", steps), "spans": rows_to_table("spans", spans)}
    return KeptRank(0, base.directory, manifest, tables=tables)


def of_step(rank: KeptRank, number: int) -> pa.Array:
    """Return which spans are of a step: kernels of other shapes cannot be matched, and one profiled step is left."""
    return pc.equal(rank.table("spans")["step"], number)


def _spans(step: int, kernels: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    missing = dict.fromkeys(
        ("start_index", "end_index", "module_id", "operator_id", "scope_id", "flops", "moved_bytes")
    )
    for start_ns, end_ns in kernels:
        yield {"device_idx": 0, "kind": "kernel", "name_id": 0, "phase": "forward", "step": step, "stream": 7} | {
            **missing,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "numbers": "",
        }


@pytest.mark.parametrize("energy", [True, False])
def test_a_program_that_never_waits_has_the_gpus_step_time(energy: bool) -> None:
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS), energy=energy)
    times, broken_down = step_times(rank), present(break_down_time(rank))
    assert present(times.median_ns) == pytest.approx(KERNELS * 2 * MS, rel=0.01)
    assert times.source == (
        "GPU, 29 steps between two synchronizations" if energy else "GPU, kernels of 2 profiled steps"
    )
    assert broken_down.busy_ns + present(broken_down.idle_ns) == pytest.approx(present(times.median_ns))
    assert 0 <= present(broken_down.idle_ns) <= 0.01 * KERNELS * 2 * MS
    assert broken_down.busy_ns / present(broken_down.step_ns) == pytest.approx(1, abs=0.01)
    assert present(step_parts(rank)).scale == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("ahead", "waits_every"), [(True, 0), (True, 5), (False, 1)])
def test_without_profiled_steps_the_second_synchronization_shows_that_the_host_ran_ahead(
    ahead: bool, waits_every: int
) -> None:
    """A program that replays a CUDA graph has no timing measurement. It may print its loss in some steps."""
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS, waits_every=waits_every), energy=True)
    no_spans = rank.table("spans").slice(0, 0)
    rank = replace(rank, manifest=replace(rank.manifest, time_steps=None), tables=rank.tables | {"spans": no_spans})
    times = step_times(rank)
    assert gpu_steps(rank) is None
    assert present(times.median_ns) == pytest.approx(KERNELS * 2 * MS, rel=0.01)
    assert times.source.startswith("GPU, 29 steps between two" if ahead else "host clock")


def test_a_profiled_step_of_such_a_program_is_compared_on_the_gpu() -> None:
    gpu = SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS)
    assert present(find_overhead(recorded(gpu, energy=True)).profiled_step_frac) == pytest.approx(1, rel=0.01)
    gpu = SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS)
    assert find_overhead(recorded(gpu, energy=False)).profiled_step_frac is None


@pytest.mark.parametrize("every", [4, 5])
def test_a_program_that_waits_in_some_steps_has_the_mean_of_its_steps(every: int) -> None:
    """It prints its loss in every fourth step. The host ends the others before the GPU."""
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS, waits_every=every), energy=True)
    rank = replace(rank, tables=rank.tables | {"spans": rank.table("spans").filter(of_step(rank, PROFILED[0]))})
    times = step_times(rank)
    assert not present(gpu_steps(rank)).runs_ahead
    assert times.source == "host clock, mean of 35 unprofiled steps"
    assert times.p95_ns is None
    assert present(times.median_ns) == pytest.approx(KERNELS * 2 * MS, rel=0.2)  # waits between steps are in none


def test_a_collective_that_waits_for_a_profiled_rank_is_no_work_of_a_step() -> None:
    """With one long step, in which a checkpoint is saved, the program seemed to wait for the GPU in that step only."""
    gpu = SimulatedGpu(launch_ns=MS, kernel_ns=MS // 2, waits=True)
    rank = recorded(gpu, energy=False, profiled_ns=4 * MS)
    steps = rank.table("steps").to_pylist()
    steps[-1]["end_ns"] += 1000 * KERNELS * MS
    spans = [
        row | {"kind": "kernel" if place % KERNELS < 2 else "collective"}
        for place, row in enumerate(rank.table("spans").to_pylist())
    ]
    tables = {"steps": rows_to_table("steps", steps), "spans": rows_to_table("spans", spans)}
    alone = replace(rank, tables=tables)
    of_two = replace(alone, manifest=replace(rank.manifest, world=World(size=2, rank=0)))
    assert step_times(alone).source == "GPU, kernels of 2 profiled steps"  # not the mean, which has the long step
    assert step_times(of_two).source == "host clock, 35 unprofiled steps"
    assert step_times(of_two).median_ns == pytest.approx(KERNELS * MS, rel=0.1)


def test_steps_that_also_generate_texts_are_no_waits_for_the_gpu() -> None:
    """Every second step begins with a rollout of many launches, and the profiled ones had none."""
    rank = recorded(SimulatedGpu(launch_ns=MS, kernel_ns=MS * 3 // 2, waits=True), energy=False)
    steps = rank.table("steps").to_pylist()
    for row in steps[PROFILED[1] :]:
        row["end_ns"] = row["start_ns"] + (200 * KERNELS * MS if row["step"] % 2 else KERNELS * MS)
    rank = replace(rank, tables=rank.tables | {"steps": rows_to_table("steps", steps)})
    assert step_times(rank).source == "host clock, 35 unprofiled steps"
    assert present(step_times(rank).p95_ns) == 200 * KERNELS * MS


def test_a_program_that_ends_before_the_host_waits_has_the_time_of_its_profiled_steps() -> None:
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS, waits_every=PROFILED[1]), energy=False)
    steps = rank.table("steps")
    rank = replace(rank, tables=rank.tables | {"steps": steps.slice(0, PROFILED[1] + 1)})
    assert step_times(rank).source == "GPU, kernels of 2 profiled steps"
    assert present(step_times(rank).median_ns) == pytest.approx(KERNELS * 2 * MS, rel=0.01)


@pytest.mark.parametrize("waits", [True, False])
def test_a_single_profiled_step_is_not_shorter_than_its_work(waits: bool) -> None:
    """A program of four steps waits for the work of the last one after its end."""
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS, waits=waits), energy=False)
    number = PROFILED[0]
    steps = [row for row in rank.table("steps").to_pylist() if row["step"] < 4 or row["step"] == number]
    tables = {"steps": rows_to_table("steps", steps), "spans": rank.table("spans").filter(of_step(rank, number))}
    rank = replace(rank, tables=tables, manifest=replace(rank.manifest, time_steps=(number, number)))
    found = step_times(rank)
    assert present(found.median_ns) == pytest.approx(KERNELS * 2 * MS, rel=0.01)
    assert (found.source == "GPU, kernels of 1 profiled step") == (not waits)


@pytest.mark.parametrize("waits", [True, False])
def test_a_program_that_keeps_up_has_the_hosts_step_time(waits: bool) -> None:
    rank = recorded(SimulatedGpu(launch_ns=3 * MS, kernel_ns=2 * MS, waits=waits), energy=True)
    assert step_times(rank).source == "host clock, 35 unprofiled steps"
    assert step_times(rank).median_ns == pytest.approx(KERNELS * 3 * MS, rel=0.1)


def test_a_step_that_waits_for_its_own_work_is_on_the_hosts_clock() -> None:
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS, waits=True), energy=True)
    assert not present(gpu_steps(rank)).runs_ahead
    assert step_times(rank).median_ns == pytest.approx(KERNELS * 2 * MS, rel=0.01)


def test_profiled_steps_that_are_busy_for_longer_are_compared_with_themselves() -> None:
    """A collective waits for the other rank, which records operators in this step."""
    gpu = SimulatedGpu(launch_ns=MS // 10, kernel_ns=MS, waits=True)
    found = present(break_down_time(recorded(gpu, energy=True, profiled_ns=2 * MS)))
    assert found.of_profiled_step
    assert present(found.unprofiled.median_ns) < found.busy_ns
    assert found.busy_ns + present(found.idle_ns) == pytest.approx(present(found.step_ns))
    assert present(found.step_ns) == pytest.approx(KERNELS * 2 * MS, rel=0.02)


def test_an_energy_measurement_that_was_cut_short_gives_no_step_time() -> None:
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS), energy=True)
    edges = present(rank.manifest.energy_pass)
    short = replace(edges, end_ns=present(edges.start_ns) + MS)
    rank = replace(rank, manifest=replace(rank.manifest, energy_pass=short))
    assert step_times(rank).source == "GPU, kernels of 2 profiled steps"


@given(
    launch_ns=st.integers(1, 5 * MS),
    kernel_ns=st.integers(1, 5 * MS),
    profiled_ns=st.integers(1, 10 * MS),
    queue=st.integers(1, 60),
    waits=st.booleans(),
    energy=st.booleans(),
)
def test_busy_and_idle_are_the_step_in_every_run(
    launch_ns: int, kernel_ns: int, profiled_ns: int, queue: int, waits: bool, energy: bool
) -> None:
    rank = recorded(SimulatedGpu(launch_ns, kernel_ns, queue, waits), energy=energy, profiled_ns=profiled_ns)
    found = present(break_down_time(rank))
    assert present(found.idle_ns) >= 0
    assert found.busy_ns + present(found.idle_ns) == pytest.approx(present(found.step_ns), rel=0.01)
    assert found.of_profiled_step or found.step_ns == step_times(rank).median_ns


def test_rates_of_such_a_program_use_the_gpus_time() -> None:
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS), energy=True)
    rates = present(find_rates(rank))
    assert rates.samples_per_s == pytest.approx(rates.batch / (KERNELS * 2e-3), rel=0.01)


@pytest.mark.parametrize(
    ("calls", "is_known"),
    [(((1, 1, 24, -1), (3, 3, 24, -1)), True), (((2, 2, 24, -1),), False), ((), True)],
)
def test_a_module_that_most_steps_do_not_call_has_no_rate(calls: Calls, is_known: bool) -> None:
    """Such as an encoder that is called once for all words of a translation."""
    rank = recorded(SimulatedGpu(launch_ns=2 * MS, kernel_ns=MS, waits=True), energy=True)
    inputs = replace(present(rank.manifest.inputs), shape=(24, 64))
    window = replace(present(rank.manifest.window), first_step=1, last_step=3)
    rank = replace(rank, manifest=replace(rank.manifest, calls=calls, inputs=inputs, window=window))
    rates = present(find_rates(rank))
    assert (rates.samples_per_s is not None) is is_known
    assert rates.step_samples == (24 if is_known else None)


@pytest.mark.parametrize(
    ("calls", "is_known"),
    [(((1, 4, 65536, 1),), True), (((1, 1, 65536, 512), (2, 4, 65536, 64)), False)],
)
def test_replays_have_a_batch_if_all_calls_had_one(
    calls: tuple[tuple[int, int, int, int], ...], is_known: bool
) -> None:
    """A replay has no arguments. One of several captured shapes could be any of them, such as prompts and tokens."""
    rank = recorded(SimulatedGpu(launch_ns=2 * MS, kernel_ns=MS, waits=True), energy=True)
    rank = replace(rank, manifest=replace(rank.manifest, calls=calls))
    assert present(find_rates(rank)).samples_per_s is not None
    steps = [row | {"kind": "replay" if row["step"] > 4 else "call"} for row in rank.table("steps").to_pylist()]
    changed = replace(rank, tables=rank.tables | {"steps": rows_to_table("steps", steps)})
    assert (present(find_rates(changed)).samples_per_s is not None) is is_known


@pytest.mark.parametrize(
    ("long", "is_known"),
    [({10, 18, 26, 34}, False), ({10}, True), (set(), True)],
    ids=["in every eighth step", "once", "never"],
)
def test_a_usual_step_gives_no_rate_of_a_program_that_does_other_work_most_of_the_time(
    long: set[int], is_known: bool
) -> None:
    """Such as a policy that generates texts, and is then trained on them in eight steps."""
    rank = recorded(SimulatedGpu(launch_ns=2 * MS, kernel_ns=MS, waits=True), energy=True)
    steps = rank.table("steps").to_pylist()
    changed = [row | {"end_ns": row["end_ns"] + 1000 * MS * (row["step"] in long)} for row in steps]
    found = present(find_rates(replace(rank, tables=rank.tables | {"steps": rows_to_table("steps", changed)})))
    assert (found.samples_per_s is not None) is is_known


@pytest.mark.parametrize(("every", "is_known"), [(4, False), (99, True)])
def test_a_profiled_step_of_several_kinds_of_steps_is_not_compared(every: int, is_known: bool) -> None:
    """Every fourth call updates the weights, and so does each profiled one."""
    gpu = SimulatedGpu(launch_ns=2 * MS, kernel_ns=MS, waits=True)
    rank = recorded(gpu, energy=True)
    first, last = present(rank.manifest.time_steps)
    steps = rank.table("steps").to_pylist()
    for row in steps:
        if first <= row["step"] <= last or row["step"] % every == 0:
            row["end_ns"] = row["start_ns"] + 20 * (row["end_ns"] - row["start_ns"])
    changed = replace(rank, tables=rank.tables | {"steps": rows_to_table("steps", steps)})
    assert (find_overhead(changed).profiled_step_frac is not None) is is_known


def test_steps_of_another_training_are_not_in_the_step_time() -> None:
    """In a notebook, another optimizer takes over during the unprofiled steps. Its steps are twice as fast."""
    gpu = SimulatedGpu(launch_ns=2 * MS, kernel_ns=MS, waits=True)
    rank = recorded(gpu, energy=True)
    steps = rank.table("steps").to_pylist()
    for row in steps[8:]:
        row["end_ns"] = row["start_ns"] + (row["end_ns"] - row["start_ns"]) // 2
    changed = replace(rank, tables=rank.tables | {"steps": rows_to_table("steps", steps)})
    assert present(step_times(changed).median_ns) == pytest.approx(KERNELS * MS, rel=0.1)
    of_two = replace(changed, manifest=replace(rank.manifest, trainings=((1, 0), (9, 1))))
    assert step_times(of_two).source == "host clock, 3 unprofiled steps"
    assert present(step_times(of_two).median_ns) == pytest.approx(KERNELS * 2 * MS, rel=0.1)
    none_left = replace(changed, manifest=replace(rank.manifest, trainings=((1, 0), (6, 1))))
    assert step_times(none_left).source == "host clock, 2 recorded steps"
    assert find_overhead(of_two).profiled_step_frac == pytest.approx(1, rel=0.1)
    assert find_overhead(none_left).profiled_step_frac is None  # there is no unprofiled step to compare with


@pytest.mark.parametrize("begins", [9, 11, 20])
def test_an_energy_measurement_of_another_training_gives_no_step_time(begins: int) -> None:
    rank = recorded(SimulatedGpu(launch_ns=MS // 100, kernel_ns=2 * MS), energy=True)
    two = replace(rank, manifest=replace(rank.manifest, trainings=((1, 0), (begins, 1))))
    assert step_times(rank).source == "GPU, 29 steps between two synchronizations"
    assert step_times(two).source == "GPU, kernels of 2 profiled steps"
