"""Estimates of sharded training, end to end: each simulated rank is a child process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.cli.main import main
from gpuledger.model.run import Run, read_run

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_children")]
MIB = 1 << 20

FSDP = """
import os, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
assert dist.get_backend() == "nccl" and torch.cuda.device_count() == int(os.environ["LOCAL_WORLD_SIZE"])
model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
device = next(model.parameters()).device
assert device == torch.device("cuda", int(os.environ["LOCAL_RANK"])), device
optimizer = torch.optim.Adam(model.parameters())
for _ in range(9):
    model(torch.randn(8, 1024, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PIPELINE = """
import os, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl")
model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(1 + rank)]).to(device)
optimizer = torch.optim.Adam(model.parameters())
stage = PipelineStage(model, rank, world, device)
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
data = torch.randn(4, 512, device=device)
for _ in range(9):
    first, last = [data] if rank == 0 else [], {"target": data} if rank == world - 1 else {}
    schedule.step(*first, **last)
    optimizer.step()
    optimizer.zero_grad()
"""

TRAIN = """
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(9):
    model(torch.randn(4, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
IMPORTS = "import os, torch\nimport torch.distributed as dist\nfrom torch import nn\n"


def ask(tmp_path: Path, program: str, *words: object) -> Result:
    script = tmp_path / "train.py"
    script.write_text(program, encoding="utf-8")
    command = ["estimate", "-q", *words, "--out", tmp_path / "one.ledger", script]
    return CliRunner().invoke(main, [str(word) for word in command])


def categories_of(run: Run, number: int) -> dict[str, int]:
    rank = run.rank(number)
    return {one.category: one.bytes for one in break_down(rank, find_peak(rank), by=("category",)).accounts}


def test_shards_gathered_weights_and_every_coordinate(tmp_path: Path) -> None:
    """By hand: each of four weights has 4 MiB; a rank of four holds a quarter of it, and two states of Adam of it."""
    result = ask(tmp_path, FSDP, "--world-size", 4, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [one["rank"] for one in found["ranks"]] == [0, 3]
    assert [list(one["coordinate"].values()) for one in found["ranks"]] == [[0], [3]]
    run = read_run(tmp_path / "one.ledger")
    assert [rank.number for rank in run.ranks] == [0, 3]
    for number in (0, 3):
        assert find_peak(run.rank(number)).step > 1
        assert categories_of(run, number)["gathered_weight"] >= 4 * MIB
    assert any("NCCL" in note for note in found["notes"])
    assert found["nccl_bytes"] > 0
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "one.ledger")])
    assert "no recording" not in shown.stdout, "ranks that were not simulated are not missing"


def test_more_ranks_need_less_memory_each(tmp_path: Path) -> None:
    """The weights have 16 MiB, and the states of Adam 32: 7 of 8 parts are on other ranks."""
    sizes = []
    for world_size in (1, 8):
        result = ask(tmp_path, FSDP, "--world-size", world_size, "--ranks", "0", "--json", "--force")
        assert result.exit_code == 0, result.stderr
        sizes.append(json.loads(result.stdout)["ranks"][0]["peak_allocated_bytes"])
    assert sizes[0] - sizes[1] > 48 * MIB * 7 / 8 - 12 * MIB


def test_stages_of_a_pipeline_exchange_shapes(tmp_path: Path) -> None:
    result = ask(tmp_path, PIPELINE, "--world-size", 3)
    assert result.exit_code == 0, result.stderr
    assert "3 ranks simulated" in result.stdout
    run = read_run(tmp_path / "one.ledger")
    assert [categories_of(run, rank)["weight"] for rank in range(3)] == [MIB, 2 * MIB, 3 * MIB]


def test_buckets_of_ddp_are_on_the_gpu(tmp_path: Path) -> None:
    """Weights, gradients and buckets have 16 MiB each, the states of Adam 32, also after the buckets are rebuilt."""
    program = IMPORTS + (
        "dist.init_process_group()\n"
        "layers = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda()\n"
        "model = nn.parallel.DistributedDataParallel(layers)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for step in range(9):\n"
        "    model(torch.randn(8, 1024, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    settled = torch.cuda.memory_allocated() / 2**20 - 64\n"  # without cuBLAS's workspaces
        "    assert step == 0 or 5 * 16 <= settled < 6 * 16, settled\n"
    )
    result = ask(tmp_path, program, "--world-size", 2, "--ranks", 0, "--steps", 3)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (TRAIN, "train.py: no process group was initialized, so nothing is divided among 4 ranks"),
        (
            "dist.init_process_group('nccl', rank=0, world_size=2)\n" + TRAIN,
            "train.py:4: init_process_group(world_size=2), but --world-size is 4",
        ),
        (
            "dist.init_process_group('nccl')\nobjects = [None]\n"
            "if dist.get_rank() == 0:\n    dist.recv_object_list(objects, src=2)\n" + TRAIN,
            "train.py:7: recv_object_list() waits for an object of rank 2, which ended without sending one",
        ),
        (
            "import multiprocessing\nmultiprocessing.Process(target=print).start()\n" + TRAIN,
            "train.py:5: the program starts a process itself",
        ),
        (
            "torch.multiprocessing.spawn(print, nprocs=2)\n" + TRAIN,
            "train.py:4: spawn(nprocs=2), but 4 ranks run on a host",
        ),
        ("store = dist.TCPStore('localhost', 29500)\n" + TRAIN, "train.py:4: torch.distributed.TCPStore waits"),
        ("raise ValueError('heads')\n", "train.py:4: ValueError: heads (rank 0 of 4)"),
    ],
)
def test_programs_that_cannot_run_as_one_rank(tmp_path: Path, program: str, said: str) -> None:
    result = ask(tmp_path, IMPORTS + program, "--world-size", 4)
    assert result.exit_code == 3, result.stdout + result.stderr
    assert said in result.stderr
    assert "hint:" in result.stderr
    assert not (tmp_path / "one.ledger").exists()


def test_spawned_functions_run_as_one_rank(tmp_path: Path) -> None:
    program = IMPORTS + (
        "def run(rank, count):\n"
        "    dist.init_process_group('nccl', rank=rank, world_size=count)\n"
        "    objects = [rank + 7]\n"
        "    dist.broadcast_object_list(objects, src=0)\n"
        "    gathered = [None] * count\n"
        "    dist.all_gather_object(gathered, rank)\n"
        "    assert objects == [7] and gathered == [rank] * count\n"
        + "".join(f"    {line}\n" for line in TRAIN.strip().splitlines())
        + "if __name__ == '__main__':\n"
        "    torch.multiprocessing.spawn(run, args=(2,), nprocs=torch.cuda.device_count())\n"
    )
    result = ask(tmp_path, program, "--world-size", 2)
    assert result.exit_code == 0, result.stderr
    assert "torch.multiprocessing.spawn called its function in this process" in result.stderr


def test_spawned_processes_that_share_tensors_and_wait_for_each_other(tmp_path: Path) -> None:
    program = IMPORTS + (
        "def run(rank, start, done, total):\n"
        "    start.wait()\n" + "".join(f"    {line}\n" for line in TRAIN.strip().splitlines()) + "    done.wait()\n"
        "if __name__ == '__main__':\n"
        "    context = torch.multiprocessing.get_context('spawn')\n"
        "    start, done, total = context.Barrier(3), context.Event(), torch.zeros(4, device='cuda')\n"
        "    workers = torch.multiprocessing.spawn(run, (start, done, total), nprocs=2, join=False)\n"
        "    start.wait()\n"
        "    while not workers.join(): pass\n"
    )
    result = ask(tmp_path, program, "--world-size", 2)
    assert result.exit_code == 0, result.stderr
    assert "a barrier of processes was passed at once" in result.stderr
    assert "Processes that use the same GPU need the sum of their memory" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--world-size", 0), "world size 0: expected 1 to"),
        (("--world-size", 2, "--ranks", "2"), "rank 2: there are ranks 0 to 1"),
        (("--world-size", 65, "--ranks", "all"), "65 ranks to simulate: expected at most 64"),
        (("--world-size", 2, "--ranks", "x"), "--ranks x: expected numbers"),
        (("--ranks", "0"), "--ranks: the number of ranks is missing"),
        (("--world-size", 2, "--fit", "24GiB"), "--fit and ranks cannot be combined"),
        (("--world-size", 2, "--gpu", "all"), "--gpu all and ranks cannot be combined"),
        (("--world-size", 2, "--find-batch", "b"), "--find-batch and ranks cannot be combined"),
        (("--world-size", 2, "--find-world-size", 8), "--find-world-size cannot be combined"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, words: tuple[object, ...], said: str) -> None:
    result = ask(tmp_path, TRAIN, *words)
    assert result.exit_code == 2, result.stderr
    assert said in result.stderr


def test_the_smallest_number_of_ranks_that_fits(tmp_path: Path) -> None:
    """16 bytes of each of 1.5 G parameters are divided: one rank needs 22 GiB, and a whole weight 1.4."""
    program = FSDP.replace("1024, 1024, bias", "19456, 19456, bias").replace("1024,", "19456,")
    program = IMPORTS + "assert int(os.environ['WORLD_SIZE']) != 3, 'not 3'\n" + program
    result = ask(tmp_path, program, "--find-world-size", 8, "--gpu", "l4", "--steps", 2, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    verdicts = {one["world_size"]: one["verdict"] for one in found["trials"]}
    assert verdicts[1] == "does not fit"
    assert verdicts[found["smallest"]] == "fits"
    assert all(verdict != "fits" for size, verdict in verdicts.items() if size < found["smallest"])
