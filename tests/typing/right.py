"""Right uses of the public names: a type checker accepts them, and knows what they return."""

from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import gpuledger
from gpuledger import (
    Balance,
    Breakdown,
    Diff,
    EnergyBreakdown,
    Estimate,
    Gate,
    Rank,
    RanksEstimate,
    Recording,
    Run,
    Search,
    StepTimes,
    Watch,
    WorldSearch,
)
from gpuledger.integrations import TensorBoardSink, log_run
from gpuledger.ops import OperatorKey, Workload, read_workload


@gpuledger.record("train", steps=(1, 2), out=Path("train.ledger"), passes="memory,time")
def train(batches: list[int], *, lr: float) -> int:
    return len(batches)


assert_type(train([1, 2], lr=0.1), int)


@gpuledger.scope("encoder", append=False)
def encode(text: str) -> Iterator[bytes]:
    yield text.encode()


assert_type(encode("a"), Iterator[bytes])


@gpuledger.fake_output("fast::attention")
def attention(query: list[float]) -> list[float]:
    return query


assert_type(attention([1.0]), list[float])

with gpuledger.record("step") as recording:
    recording.step()
assert_type(recording, Recording)
assert_type(recording.peak_allocated_bytes, int | None)
assert_type(recording.step_energy_j, float | None)

with gpuledger.watch(gpus=[0, 1], interval="10ms") as watched, watched.window("forward"):
    pass
assert_type(watched, Watch)
assert_type(watched.windows, dict[str, float | None])

run = gpuledger.load("step.ledger")
assert_type(run, Run)
assert_type(run.rank(0), Rank)
assert_type(recording.run(), Run)
assert_type(gpuledger.breakdown(run, by=("category", "module"), at="end"), Breakdown)
assert_type(gpuledger.balance("step.ledger", rank=1), Balance)
assert_type(gpuledger.step_times(run), StepTimes)
assert_type(gpuledger.step_energy(run), EnergyBreakdown | None)
assert_type(gpuledger.diff("before", run, "phase", depth=2, at="end", device_idx=-1), Diff)
gates = gpuledger.check(run, "budget.toml", against="base.ledger", allow="step_energy_j=+3%")
assert_type(gates, tuple[Gate, ...])

found = gpuledger.estimate(train, [1, 2], gpu="h200", steps=2, confidence=0.9)
assert_type(found, Estimate)
assert_type(found.fits, bool)
assert_type(gpuledger.find_batch(lambda batch: train([batch], lr=0.1), start=8), Search)
sharded = gpuledger.estimate_ranks("train.py", "--lr", "0.1", world_size=8, ranks=range(8), steps=None, out=Path("a"))
assert_type(sharded, RanksEstimate)
assert_type(sharded.fits, bool)
assert_type(sharded.highest.coordinate, dict[str, int])
assert_type(sharded.ranks[0].estimate, Estimate)
smallest = gpuledger.find_world_size("-m", "train", most=64, gpu="l4")
assert_type(smallest, WorldSearch)
assert_type(smallest.smallest, int | None)
assert_type(smallest.trials[0].process_bytes, int | None)

try:
    gpuledger.load("nothing.ledger")
except gpuledger.InputError as error:
    assert_type(error.hint, str | None)

assert_type(log_run(run, TensorBoardSink("logs")), int)
assert_type(read_workload(Path("resnet50.workload.json")), Workload)
assert_type(read_workload(Path("resnet50.workload.json")).uses[0].key, OperatorKey)
