"""Runs programs that fail in different ways for lack of memory, and compares the first sentence with the planted cause.

Each program runs in a process of its own, forked after torch was imported and before CUDA is used. For the first crash,
PyTorch's own message is kept as well. Ends within 150 s.

Usage: python bench/memory/out_of_memory.py --out bench/memory/results/h200/out_of_memory.json
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import nn

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from one_by_one import names_in_time, out_and_only

from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.memory.failures.replayed_settings import FailureReplay
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.model.run import Rank

GIB = 1 << 30
ALONE = 18
"""Steps after which only the flight recorder is on."""
EACH_S = 14


class Training:
    """A small training of which one thing goes wrong."""

    def __init__(self, width: int = 1024, layers: int = 4) -> None:
        modules: list[nn.Module] = []
        for _ in range(layers):
            modules += [nn.Linear(width, width), nn.ReLU()]
        self.model = nn.Sequential(*modules).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.width = width

    def step(self, rows: int = 256) -> torch.Tensor:
        """Train one step; return the output."""
        self.optimizer.zero_grad()
        output: torch.Tensor = self.model(torch.randn(rows, self.width, device="cuda"))
        output.square().mean().backward()
        self.optimizer.step()
        return output.detach()


def capacity() -> int:
    """Return the GPU's bytes."""
    return int(torch.cuda.mem_get_info()[1])


def block(size: int) -> torch.Tensor:
    """Return a tensor of ``size`` bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def warmed() -> Training:
    """Return a training after the recorded steps."""
    training = Training()
    for _ in range(ALONE):
        training.step()
    return training


def one_large_request() -> None:
    """One tensor of 80 % of the GPU beside 30 %."""
    warmed()
    kept = block(int(0.3 * capacity()))
    block(int(0.8 * capacity()))
    del kept


def fragmentation() -> None:
    """One of the two blocks in each segment of 20 MiB is freed, and then a third of the limit is requested."""
    warmed()
    limit = min(8 * GIB, torch.cuda.mem_get_info()[0] // 2)
    torch.cuda.set_per_process_memory_fraction(limit / capacity())
    segments = int(0.9 * limit - torch.cuda.memory_reserved()) // (20 << 20)
    blocks = [block(9 << 20) for _ in range(2 * segments)]
    kept = blocks[::2]
    del blocks
    block(limit // 3)
    del kept


def _leak(keep: Callable[[Training, torch.Tensor], None]) -> None:
    training = Training()
    size = capacity() // 120
    for _ in range(400):
        training.step()
        keep(training, block(size))


def leak_of_outputs() -> None:
    """A list keeps an output of every step."""
    outputs: list[torch.Tensor] = []
    _leak(lambda _training, output: outputs.append(output))


def leak_of_graphs() -> None:
    """A running total keeps the graph of every step."""
    training = Training()
    total = torch.zeros((), device="cuda")
    rows = capacity() // 100 // (8 * 1024 * 4)
    for _ in range(400):
        training.step()
        total = total + training.model(torch.randn(rows, 1024, device="cuda")).mean()


def leak_of_hooks() -> None:
    """Every step registers another hook that keeps a mask."""

    def keep(training: Training, mask: torch.Tensor) -> None:
        training.model[0].register_forward_hook(lambda *_args, mask=mask: None)

    _leak(keep)


def leak_of_exceptions() -> None:
    """A list keeps exceptions, and they keep their frames."""
    errors: list[BaseException] = []

    def failing(local: torch.Tensor) -> None:
        raise ValueError(str(local.shape))

    def keep(_training: Training, local: torch.Tensor) -> None:
        try:
            failing(local)
        except ValueError as error:
            errors.append(error)

    _leak(keep)


def ragged_batch() -> None:
    """One batch is thousands of times longer than the others."""
    training = Training(layers=12)
    for _ in range(ALONE + 10):
        training.step()
    training.step(rows=capacity() // 16 // (1024 * 4))


def optimizer_state() -> None:
    """Weights and gradients are 80 % of the GPU."""
    rows = capacity() // 100 // (4096 * 4)
    weights = [nn.Parameter(torch.empty(rows, 4096, device="cuda")) for _ in range(40)]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    torch.optim.Adam(weights).step()


def evaluation() -> None:
    """Outputs of an evaluation with gradients enabled keep their activations."""
    training = warmed()
    training.model.eval()
    rows = capacity() // 40 // (8 * 1024 * 4)
    scores = [training.model(torch.randn(rows, 1024, device="cuda")) for _ in range(80)]
    del scores


def second_process() -> None:
    """Another process uses 60 % of the GPU."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        kept = block(int(0.6 * capacity()))
        os.write(writing, b"!")
        time.sleep(EACH_S)
        del kept
        os._exit(0)
    try:
        os.read(reading, 1)
        training = warmed()
        kept = []
        while True:
            kept.append(block(4 * GIB))
            training.step()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def nccl_start() -> None:
    """A communicator starts on a GPU without free memory."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29617", RANK="0", WORLD_SIZE="1")
    warmed()
    kept = block(torch.cuda.mem_get_info()[0] - (160 << 20))
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    torch.distributed.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    del kept


def private_pool() -> None:
    """A CUDA graph's pool keeps 60 % of the GPU free."""
    warmed()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = [block(int(0.1 * capacity())) for _ in range(6)]
        del inside
    block(int(0.45 * capacity()))


def memory_fraction() -> None:
    """The process limits itself to a tenth of the GPU."""
    torch.cuda.set_per_process_memory_fraction(0.1)
    training = warmed()
    kept = []
    while True:
        kept.append(block(GIB))
        training.step()


PROGRAMS: dict[Callable[[], None], str] = {
    one_large_request: "one_large_request",
    fragmentation: "fragmentation",
    leak_of_outputs: "growth",
    leak_of_graphs: "growth",
    leak_of_hooks: "growth",
    leak_of_exceptions: "growth",
    ragged_batch: "larger_step",  # it fails in the backward pass, where no input is known
    optimizer_state: "optimizer_state",
    evaluation: "evaluation",
    second_process: "other_processes",
    nccl_start: "library",
    private_pool: "private_pool",
    memory_fraction: "memory_fraction",
}


def run(program: Callable[[], None], directory: Path) -> dict[str, Any]:
    """Return what a program's run says; called in its own process."""
    rank_directory = directory / f"{program.__name__}.ledger" / "rank-0"
    rank_directory.mkdir(parents=True)
    settings = RecordSettings(rank_directory.parent, devices="cuda", flight_recorder=True)
    session = Session(settings, rank_directory=lambda: rank_directory, from_outside=True, begins_late=False)
    session.start()
    error = ""
    try:
        program()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        session.finish("exit")  # inside, because the error of a library is seen at the end
    else:
        session.finish("exit")
    rank = Rank(0, rank_directory, post_rank(rank_directory))
    found = explain_oom(rank)
    growth = next((one.cause for one in found if one.cause), None)
    first = found[0] if found else None
    verdicts = FailureReplay(rank, rank.manifest.oom[0]).verdicts() if found else ()
    return {
        "error": error,
        "kind": None if growth is None else growth.kind,
        "sentence": None if growth is None else growth.sentence,
        "step": None if first is None else first.step,
        "line": None if first is None else first.line,
        "known_frac": None if first is None or first.state is None else first.state.known_frac,
        "state": None
        if first is None or first.state is None
        else {
            "blocks": first.state.blocks,
            "reserved_bytes": first.state.reserved_bytes,
            "free_usable_bytes": first.state.free.usable_bytes,
            "free_private_bytes": first.state.free.private_pool_bytes,
        },
        "remedies": [] if first is None else [[one.action, one.fits] for one in first.remedies],
        "verdicts": [[one.alloc_conf, one.fits, one.note] for one in verdicts],
        "took_ns": [one.took_ns for one in rank.manifest.oom],
        "censuses": [one.took_ns for one in rank.manifest.censuses],
        "notes": list(rank.manifest.notes),
    }


def forked(program: Callable[[], None], directory: Path) -> dict[str, Any]:
    """Return the result of a program in a forked child, which is ended after :data:`EACH_S`."""
    answer = directory / f"{program.__name__}.json"
    started_s = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.alarm(EACH_S)
        try:
            answer.write_text(json.dumps(run(program, directory)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    found = json.loads(answer.read_text()) if answer.exists() else {"error": f"wait status {status}", "kind": None}
    return {**found, "took_s": round(time.monotonic() - started_s, 1)}


def main() -> None:
    """Run every program and print a line for each."""
    arguments = out_and_only(__doc__, "program")
    results: dict[str, Any] = {}
    programs = {program.__name__: program for program in PROGRAMS}
    with tempfile.TemporaryDirectory() as directory:
        for name in names_in_time(programs, arguments.only, 135):
            planted, found = PROGRAMS[programs[name]], forked(programs[name], Path(directory))
            results[name] = {"planted": planted, "right": found.get("kind") == planted, **found}
            words = (name, planted, found.get("kind"), found.get("sentence"))
            print(*words, f"{found['took_s']} s", flush=True)
            write_results(arguments.out, {"programs": results})
    write_results(arguments.out, {"environment": describe_environment("cuda"), "programs": results})


if __name__ == "__main__":
    main()
