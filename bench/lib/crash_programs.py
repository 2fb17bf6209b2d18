"""Programs that fail in different ways for lack of GPU memory, the planted cause of each, and what they tell of it."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from crash_facts import TOLD
from torch import nn

GIB = 1 << 30
ALONE = 18
"""Steps after which only the flight recorder is on."""
HEALTHY = [ALONE]
"""Steps before a failure: one number, which a script can replace."""
EACH_S = 14
"""Longest time of a program."""


class Training:
    """A small training of which one thing goes wrong."""

    def __init__(self, width: int = 1024, layers: int = 4) -> None:
        modules: list[nn.Module] = []
        for _ in range(layers):
            modules += [nn.Linear(width, width), nn.ReLU()]
        self.model = nn.Sequential(*modules).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.width = width
        TOLD.update(
            model=weakref.ref(self.model), weight_bytes=sum(one.nbytes for one in self.model.parameters()), step=1
        )

    def step(self, rows: int = 256) -> torch.Tensor:
        """Train one step; return the output."""
        self.optimizer.zero_grad()
        output: torch.Tensor = self.model(torch.randn(rows, self.width, device="cuda"))  # holds: step
        output.square().mean().backward()
        self.optimizer.step()
        TOLD["step"] += 1
        return output.detach()


def capacity() -> int:
    """Return the GPU's bytes."""
    return int(torch.cuda.mem_get_info()[1])


def block(size: int) -> torch.Tensor:
    """Return a tensor of ``size`` bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")  # holds: block


def warmed() -> Training:
    """Return a training after the recorded steps."""
    training = Training()
    for _ in range(HEALTHY[0]):
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
    TOLD["own_limit_bytes"] = limit
    segments = int(0.9 * limit - torch.cuda.memory_reserved()) // (20 << 20)
    blocks = [block(9 << 20) for _ in range(2 * segments)]
    kept = blocks[::2]
    del blocks
    block(limit // 3)
    del kept


def _leak(keep: Callable[[Training, torch.Tensor], None]) -> None:
    training = Training()
    size = capacity() // 120
    TOLD["growth_bytes"] = size
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
    TOLD["growth_bytes"] = 5 * rows * 1024 * 4  # the input and four outputs of ReLU
    for _ in range(400):
        training.step()
        total = total + training.model(torch.randn(rows, 1024, device="cuda")).mean()  # holds: graph


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
    for _ in range(HEALTHY[0] + 10):
        training.step()
    TOLD["usual_peak_bytes"] = torch.cuda.max_memory_allocated()
    training.step(rows=capacity() // 16 // (1024 * 4))


def optimizer_state() -> None:
    """Weights and gradients are 80 % of the GPU."""
    rows = capacity() // 100 // (4096 * 4)
    weights = [nn.Parameter(torch.empty(rows, 4096, device="cuda")) for _ in range(40)]
    TOLD.update(weight_bytes=sum(one.nbytes for one in weights), step=1)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    torch.optim.Adam(weights).step()


def evaluation() -> None:
    """Outputs of an evaluation with gradients enabled keep their activations."""
    training = warmed()
    training.model.eval()
    rows = capacity() // 40 // (8 * 1024 * 4)
    scores = [training.model(torch.randn(rows, 1024, device="cuda")) for _ in range(80)]  # holds: scores
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
        TOLD["other_bytes"] = int(0.6 * capacity())
        training = warmed()
        blocks: list[torch.Tensor] = []
        while True:
            blocks.append(block(4 * GIB))
            training.step()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def nccl_start() -> None:
    """A communicator starts on a GPU without free memory."""
    port = str(29617 + os.getpid() % 1000)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK="0", WORLD_SIZE="1")
    warmed()
    kept = block(torch.cuda.mem_get_info()[0] - (160 << 20))
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    torch.distributed.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    del kept


def private_pool() -> None:
    """A CUDA graph's pool keeps 60 % of the GPU free."""
    warmed()
    TOLD["private_bytes"] = 6 * int(0.1 * capacity())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = [block(int(0.1 * capacity())) for _ in range(6)]
        del inside
    block(int(0.45 * capacity()))


def memory_fraction() -> None:
    """The process limits itself to a tenth of the GPU, and most of that is in use before it trains."""
    torch.cuda.set_per_process_memory_fraction(0.1)
    TOLD["own_limit_bytes"] = capacity() // 10
    kept = [block(capacity() // 100) for _ in range(8)]
    training = warmed()
    kept.append(block(capacity() // 40))
    training.step()
    del kept


def in_a_thread() -> None:
    """A worker thread requests one tensor of 80 % of the GPU."""
    warmed()
    kept = block(int(0.3 * capacity()))
    with ThreadPoolExecutor(1) as workers:
        workers.submit(block, int(0.8 * capacity())).result()
    del kept


def in_a_capture() -> None:
    """The capture of a CUDA graph requests one tensor of 80 % of the GPU."""
    warmed()
    kept = block(int(0.3 * capacity()))
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        block(int(0.8 * capacity()))
    del kept


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
    in_a_thread: "one_large_request",
    in_a_capture: "one_large_request",
}


HOLDING = {
    one_large_request: "block",
    fragmentation: "block",
    leak_of_outputs: "block",
    leak_of_graphs: "graph",
    leak_of_hooks: "block",
    leak_of_exceptions: "block",
    ragged_batch: "step",
    evaluation: "scores",
    second_process: "block",
    nccl_start: "block",
    memory_fraction: "block",
    in_a_thread: "block",
    in_a_capture: "block",
}
"""The comment at the line that allocates most of what is in use; none where weights and gradients have as much."""
HOLDERS = {
    leak_of_outputs: "outputs",
    leak_of_graphs: "total",
    leak_of_hooks: "_forward_hooks",
    leak_of_exceptions: "errors",
}
"""The object that keeps it."""
