"""Threads of a program use the simulated GPU as the main one does."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.temporaries.products import cublas_bytes

pytestmark = pytest.mark.torch
MIB = 1 << 20
PLACE = {"own": "cuda", "other": "cpu"}
plain_start = threading.Thread.start
"""Starts a thread as one that was there before."""


def test_a_server_thread_answers_requests_of_a_queue(device: SimulatedDevice) -> None:
    model = nn.Linear(512, 512, bias=False).cuda()
    requests: queue.Queue[Any] = queue.Queue()

    def serve() -> None:
        with torch.no_grad():
            while (request := requests.get()) is not None:
                data, answers = request
                answers.put(model(data.cuda()))

    server = threading.Thread(target=serve)
    server.start()
    answers: queue.Queue[torch.Tensor] = queue.Queue()
    for _ in range(3):
        requests.put((torch.randn(512, 512), answers))
    made = [answers.get() for _ in range(3)]
    requests.put(None)
    server.join()
    assert [(one.device, one.requires_grad) for one in made] == [(torch.device("cuda", 0), False)] * 3
    assert torch.is_grad_enabled()
    workspace_bytes = int(device.sizing.one(cublas_bytes))
    assert device.counters.allocated_bytes == (1 + 3) * MIB + workspace_bytes
    assert device.counters.peak_allocated_bytes == device.counters.allocated_bytes + MIB
    assert set(vars(server)) & {"run"} == set()


def test_what_a_pool_and_an_event_loop_call_is_on_the_gpu(device: SimulatedDevice) -> None:
    def infer(size: int) -> int:
        return torch.zeros(size, device="cuda").square().cpu().numel()

    async def gather() -> list[int]:
        return await asyncio.gather(*[asyncio.to_thread(infer, size * MIB) for size in (1, 2)])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(infer, [MIB, 2 * MIB])) == [MIB, 2 * MIB]
    assert asyncio.run(gather()) == [MIB, 2 * MIB]
    assert device.counters.peak_allocated_bytes >= 16 * MIB
    assert device.counters.allocated_bytes == 0


def test_threads_may_have_their_most_at_the_same_time(device: SimulatedDevice) -> None:
    kept = torch.zeros(MIB, device="cuda")
    assert device.overlap is None

    def work(size: int) -> None:
        torch.zeros(size, device="cuda").square()

    for size in (2 * MIB, 3 * MIB):
        thread = threading.Thread(target=work, args=(size,))
        thread.start()
        thread.join()
    assert device.overlap is not None
    assert device.overlap.more_bytes(0) == (4 + 2 * 3 * 4) * MIB  # threads that did not run at once count as one
    both = threading.Barrier(2)

    def work_beside(size: int) -> None:
        both.wait(30)
        work(size)
        both.wait(30)

    threads = [threading.Thread(target=work_beside, args=(size,)) for size in (2 * MIB, 3 * MIB)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del kept
    assert device.overlap.more_bytes(0) in {(4 + 24 + size) * MIB for size in (16, 24)}
    assert device.overlap.more_bytes(10 << 30) == 0


def test_threads_that_others_start_are_not_of_the_program(device: SimulatedDevice) -> None:
    """An application can estimate in one thread, and go on in another one."""
    found: dict[str, torch.device] = {}
    starts, ends = threading.Event(), threading.Event()

    def note(name: str) -> None:
        found[name] = torch.zeros(2, device="cpu").square().to(PLACE[name]).device

    def start_another() -> None:
        assert starts.wait(30)
        thread = threading.Thread(target=note, args=("other",))
        thread.start()
        thread.join()
        ends.set()

    plain_start(threading.Thread(target=start_another))
    starts.set()
    assert ends.wait(30)
    first = threading.Thread(target=lambda: threading.Thread(target=note, args=("own",)).start())
    first.start()
    first.join()
    while len(found) < 2:
        threading.Event().wait(0.01)
    assert {name: place.type for name, place in found.items()} == PLACE


def test_each_thread_has_its_own_stream_place_and_backward(device: SimulatedDevice) -> None:
    weight = torch.ones(MIB, device="cuda", requires_grad=True)
    inside, goes = threading.Event(), threading.Event()
    seen: list[tuple[int, bool]] = []

    def prefetch() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            weight.register_hook(lambda _: seen.append((device.stream, device.in_backward)))
            torch.zeros(4, device="cuda").requires_grad_().sum().backward()
            inside.set()
            assert goes.wait(30)
            seen.append((device.stream, device.in_backward))

    thread = threading.Thread(target=prefetch)
    thread.start()
    assert inside.wait(30)
    assert torch.zeros(3).device.type == "cpu"
    weight.sum().backward()
    goes.set()
    thread.join()
    assert seen[0] == (0, True)
    assert seen[1][0] > 0
    assert not seen[1][1]


def test_a_thread_has_the_handle_of_one_that_has_ended(device: SimulatedDevice) -> None:
    def multiply(barrier: threading.Barrier) -> None:
        barrier.wait(30)
        torch.zeros(2, 2, device="cuda").mm(torch.zeros(2, 2, device="cuda"))
        barrier.wait(30)

    def run(count: int) -> None:
        barrier = threading.Barrier(count)
        threads = [threading.Thread(target=multiply, args=(barrier,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run(1)
    assert device.handles == 1
    run(3)
    run(2)
    assert device.handles == 3
    torch.zeros(2, 2, device="cuda").mm(torch.zeros(2, 2, device="cuda"))
    assert device.handles == 4


def test_threads_that_allocate_and_free_at_once_leave_nothing(device: SimulatedDevice) -> None:
    def work(number: int) -> None:
        kept: list[torch.Tensor] = []
        for step in range(60):
            weight = torch.ones(64 + number, 32, device="cuda", requires_grad=True)
            (weight * 2).square().sum().backward()
            kept.append(torch.randn(8).cuda())
            del kept[: step % 3]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.counters.allocated_bytes == 0
    assert not device.allocator.live
    torch.cuda.empty_cache()
    assert device.counters.reserved_bytes == 0


class Noted(torch.autograd.Function):
    """Notes that its backward runs."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, name: str, notes: list[str]) -> torch.Tensor:
        ctx.name, ctx.notes = name, notes
        return data * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.notes.append(ctx.name)
        return Noted.apply(gradients[0], f"gradient of {ctx.name}", ctx.notes), None, None


def test_nodes_of_a_backward_run_after_those_of_the_program(device: SimulatedDevice) -> None:
    """On a GPU, a thread of the engine has created them, and its numbers are lower."""
    notes: list[str] = []
    weight = torch.ones(8, device="cuda", requires_grad=True)
    sum(weight for _ in range(100))  # the program has created more nodes than the engine
    for _ in range(3):
        other = Noted.apply(weight, "other", notes).sum()
        data = Noted.apply(weight, "penalized", notes)
        (gradient,) = torch.autograd.grad((data * data).sum(), weight, create_graph=True)
        notes.clear()
        (other + gradient.square().sum()).backward()
        assert notes[0] == "other"
        assert sorted(notes[1:]) == ["gradient of penalized", "penalized"]
