"""Two processes train with fully_shard over gloo: categories, expected parts, and the merged view."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from programs import environment, write_script
from quick import quick_gpuledger
from quick import recorded as recorded_quickly
from recorded import read_recorded
from torch import distributed

from gpuledger.analyze.ranks.rank_set import RankSet, build_rank_set
from gpuledger.model.run import Run
from gpuledger.services.runs import load

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not distributed.is_available(), reason="this torch has no torch.distributed"),
]

TRAIN = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(3)))
head, tail = nn.Linear(256, 2048, bias=False), nn.Linear(2048, 256, bias=False)
for layer in (*model, tail):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)

class WholeMomentum(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("momentum", torch.zeros(parameter.shape))

optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
of_tail = WholeMomentum(tail.parameters())
for step in range(3):
    optimizer.zero_grad()
    x = model(torch.randn(8, 256) * 1.0)
    if rank == 1:
        x = x + torch.randn(64, 8, 256).relu().sum(0)
    tail(head(x)).square().mean().backward()
    optimizer.step()
    of_tail.step()
    if "dies" in sys.argv and rank == 1 and step == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()
"""
LAUNCH = """
import os, subprocess, sys
processes = [
    subprocess.Popen(
        [sys.executable, "train.py", *sys.argv[1:]], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
    )
    for rank in range(int(os.environ.get("STARTED", "2")))
]
sys.exit(max(abs(process.wait()) for process in processes))
"""
MATRIX, HEAD, TAIL, STEP = 4 * 256 * 256, 4 * 256 * 2048, 4 * 2048 * 256, 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("two")
    write_script(place, TRAIN)
    write_script(place, LAUNCH, "launch.py")
    ended = recorded_quickly(["launch.py", str(place / "store")], place, ("-q", "--out", "two"))
    assert ended.status == 0, ended.stderr.decode()
    return load(place / "two.ledger")


@pytest.fixture(scope="module")
def ranks(run: Run) -> RankSet:
    found = build_rank_set(run)
    assert found is not None
    return found


def test_each_rank_holds_what_the_mesh_says(ranks: RankSet) -> None:
    spreads = {one.name: one for one in ranks.categories}
    shards = spreads["sharded_weight"]
    assert (shards.min_bytes, shards.max_bytes, shards.expected_bytes) == ((3 * MATRIX + TAIL) // 2,) * 3
    assert spreads["weight"].expected_bytes == spreads["weight"].max_bytes == HEAD
    states = spreads["sharded_optimizer_state"]
    assert states.max_bytes == 2 * 3 * MATRIX // 2
    assert states.expected_bytes == (2 * 3 * MATRIX + TAIL) // 2 + 3 * STEP  # the tail's is whole by mistake
    assert spreads["optimizer_state"].expected_bytes == 2 * HEAD + STEP
    assert spreads["optimizer_state"].max_bytes - 2 * HEAD - TAIL in range(5 * STEP)


def test_a_weight_that_is_whole_on_every_rank_is_found(ranks: RankSet) -> None:
    assert [(one.module, one.bytes) for one in ranks.whole_weights] == [("head", HEAD)]


def test_state_that_is_whole_although_its_weight_is_sharded_is_found(ranks: RankSet) -> None:
    assert [one.bytes for one in ranks.whole_states] == [TAIL]


def test_coordinates_and_world_are_recorded(run: Run, ranks: RankSet) -> None:
    assert [line.coordinate for line in ranks.lines] == ["dp=0", "dp=1"]
    worlds = [rank.manifest.world for rank in run.ranks]
    assert [world and (world.size, world.rank) for world in worlds] == [(2, 0), (2, 1)]
    assert ranks.problems == ()


def test_show_begins_with_all_ranks(run: Run) -> None:
    shown = [*quick_gpuledger(), "show", str(run.path)]
    text = subprocess.run(shown, capture_output=True, check=True, text=True, env=environment()).stdout
    assert text.startswith("Highest peak ")
    assert "is whole on every rank: 2.0 MiB each" in text
    assert "optimizer state of" in text
    asked = subprocess.run([*shown, "--json"], capture_output=True, check=True, text=True, env=environment()).stdout
    found = json.loads(asked)["rank_set"]
    assert [line["rank"] for line in found["lines"]] == [0, 1]
    query = "SELECT rank, sum(bytes) AS bytes FROM breakdown WHERE category = 'weight' GROUP BY rank ORDER BY rank"
    asked = subprocess.run(
        [*quick_gpuledger(), "sql", str(run.path), query, "--json"], capture_output=True, check=True, text=True
    ).stdout
    assert [row["bytes"] for row in json.loads(asked)] == [HEAD, HEAD]


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN)
    write_script(tmp_path, LAUNCH, "launch.py")
    ended = recorded_quickly(["launch.py", str(tmp_path / "store"), "dies"], tmp_path, ("-q", "--out", "dies"))
    assert ended.status != 0
    found = build_rank_set(load(tmp_path / "dies.ledger"))
    assert found is not None
    assert found.problems[0] == "Rank 1 was killed. The other ranks closed their recordings."


PIPELINE = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
front, back = nn.Linear(16, 1024, bias=False), nn.Linear(1024, 1024, bias=False)
part = (front, back)[rank]
schedule = ScheduleGPipe(
    PipelineStage(part, rank, 2, torch.device("cpu")), n_microbatches=4, loss_fn=nn.MSELoss()
)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    schedule.step(*(() if rank else (torch.randn(256, 16),)), target=torch.randn(256, 1024) if rank else None)
    optimizer.step()
dist.barrier()
"""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a recorded pipeline of two stages."""
    folder = tmp_path_factory.mktemp("pipeline")
    write_script(folder, PIPELINE)
    write_script(folder, LAUNCH, "launch.py")
    ended = recorded_quickly(["launch.py", str(folder / "store")], folder, ("-q", "--out", "pipeline"))
    assert ended.status == 0, ended.stderr.decode()
    return load(folder / "pipeline.ledger")


def test_what_a_stage_of_a_pipeline_receives_for_its_backward_is_communication(pipeline: Run) -> None:
    first, last = (read_recorded(rank) for rank in pipeline.ranks)
    received = [(one.module, one.bytes) for one in first.of("communication")]
    assert received == [("front", 4 * 64 * 1024)] * 4
    assert [one.bytes for one in first.of("other") if one.bytes > 1024] == []
    assert last.of("communication") == []
    assert last.manifest.notes == ()


def test_stages_of_a_pipeline_are_not_compared_with_each_other(pipeline: Run) -> None:
    together = build_rank_set(pipeline)
    assert together is not None
    assert [(line.rank, line.coordinate) for line in together.lines] == [(0, "stage=0"), (1, "stage=1")]
    assert (together.why_highest, together.outliers) == ((), ())


INTERLEAVED = PIPELINE.replace("ScheduleGPipe", "ScheduleInterleaved1F1B").replace(
    """front, back = nn.Linear(16, 1024, bias=False), nn.Linear(1024, 1024, bias=False)
part = (front, back)[rank]
schedule = ScheduleInterleaved1F1B(
    PipelineStage(part, rank, 2, torch.device("cpu")), n_microbatches=4, loss_fn=nn.MSELoss()
)
""",
    """part = nn.ModuleList([nn.Linear(16 if number == 0 else 1024, 1024) for number in (rank, rank + 2)])
stages = [PipelineStage(one, number, 4, torch.device("cpu")) for one, number in zip(part, (rank, rank + 2))]
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=nn.MSELoss())
""",
)


def test_a_rank_with_several_stages_has_all_of_them_as_its_place(tmp_path: Path) -> None:
    assert "PipelineStage(one, number, 4" in INTERLEAVED
    write_script(tmp_path, INTERLEAVED)
    write_script(tmp_path, LAUNCH, "launch.py")
    ended = recorded_quickly(["launch.py", str(tmp_path / "store")], tmp_path, ("-q", "--out", "pipeline"))
    assert ended.status == 0, ended.stderr.decode()
    together = build_rank_set(load(tmp_path / "pipeline.ledger"))
    assert together is not None
    assert [(line.rank, line.coordinate) for line in together.lines] == [(0, "stage=0+2"), (1, "stage=1+3")]
