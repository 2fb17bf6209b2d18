"""NCCL's memory for a program's communicators, against what was measured on two H200s."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_ranks import fake_ranks
from folders import TESTS

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from gpuledger.simulate.gpu.dispatch import COMMUNICATION  # noqa: E402
from gpuledger.simulate.ranks import nccl  # noqa: E402
from gpuledger.simulate.ranks.messages import Messages  # noqa: E402
from gpuledger.simulate.ranks.nccl import MIB, WORLD, Communicators  # noqa: E402
from gpuledger.simulate.ranks.one_rank import OneRank  # noqa: E402
from gpuledger.simulate.ranks.place import RankPlace  # noqa: E402

MEASURED = TESTS.parent / "bench" / "memory" / "results" / "h200" / "nccl_memory_2.json"
MOST_OFF_MIB = 6
"""The driver gives memory in pages of 2 MiB, and a broadcast takes 4 MiB more than other collectives."""


class Seen(TorchDispatchMode):
    """Shows operators to communicators as the simulated GPU does."""

    def __init__(self, communicators: Communicators) -> None:
        super().__init__()
        self.communicators = communicators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COMMUNICATION:
            self.communicators.see(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@contextmanager
def seeing(monkeypatch: pytest.MonkeyPatch, count: int, rank: int = 0) -> Iterator[Communicators]:
    """See what one of some ranks communicates, whose tensors pass for tensors on the GPU."""
    monkeypatch.setattr(nccl, "_is_on_gpu", lambda _: True)
    communicators = Communicators()
    with fake_ranks(count, rank), Seen(communicators):
        yield communicators


def act(step: str, group: Any, communicators: Communicators) -> Any:
    """Do a step of bench/memory/nccl_memory.py, and return the group of the next one."""
    name, rank = step.partition(":")[0], dist.get_rank()
    if name == "new_group":
        return dist.new_group(list(range(dist.get_world_size())))
    if name == "group_of_one":
        return [dist.new_group([one]) for one in range(dist.get_world_size())][rank]
    x, y = torch.ones(4), torch.ones(4 * dist.get_world_size())
    if name in ("send", "send_back"):
        (dist.send if (rank == 0) == (name == "send") else dist.recv)(x, 1 - rank)
    elif name == "batch":
        communicators.is_batch = True
        both = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, x, 1 - rank)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        communicators.is_batch = False
    else:
        calls = {
            "all_reduce": lambda: dist.all_reduce(x, group=group),
            "all_gather": lambda: dist.all_gather_into_tensor(y, x, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, y, group=group),
            "broadcast": lambda: dist.broadcast(x, 0, group=group),
            "all_to_all": lambda: dist.all_to_all_single(x, x, group=group),
            "barrier": lambda: dist.barrier(group=group),
        }
        calls[name]()
    return group


SCENARIOS = json.loads(MEASURED.read_text(encoding="utf-8"))["scenarios"] if MEASURED.exists() else {}


@pytest.mark.skipif(not MEASURED.exists(), reason="bench/ is not part of the source distribution")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "given_device"])
def test_each_step_adds_what_was_measured(name: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with seeing(monkeypatch, 2, rank) as communicators:
        group, total_mib = None, 0.0
        for step in SCENARIOS[name][rank]:
            if step["step"] != "init":
                group = act(step["step"], group, communicators)
            total_mib += step["gained_mib"]
            assert communicators.nccl_bytes / MIB == pytest.approx(total_mib, abs=MOST_OFF_MIB), step


@pytest.mark.skipif(not MEASURED.exists(), reason="bench/ is not part of the source distribution")
def test_an_eager_communicator_is_there_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with seeing(monkeypatch, 2) as communicators:
        communicators.connect(dist.group.WORLD)
        steps = SCENARIOS["given_device"][0]
        assert communicators.nccl_bytes / MIB == steps[0]["gained_mib"]
        dist.all_reduce(torch.ones(2))
        assert communicators.nccl_bytes / MIB == sum(step["gained_mib"] for step in steps)


@pytest.mark.parametrize(("rank", "sent_to", "received_from"), [(0, {1, 2, 3}, set()), (2, set(), {0})])
def test_a_scatter_connects_its_root_with_every_rank(
    rank: int, sent_to: set[int], received_from: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with seeing(monkeypatch, 4, rank) as communicators:
        dist.scatter(torch.ones(2), [torch.ones(2)] * 4 if rank == 0 else None)
    (one,) = communicators.by_name.values()
    assert (one.sends_to, one.receives_from, one.has_collectives) == (sent_to, received_from, False)


def test_functional_collectives_count_by_the_name_of_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed._functional_collectives as functional

    with seeing(monkeypatch, 4) as communicators:
        group = dist.new_group([0, 1], group_desc="mesh_tp")
        functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", group))
    assert {name: one.size for name, one in communicators.by_name.items()} == {f"mesh_tp {group.group_name}": 2}


@pytest.mark.parametrize(("use_batch", "names"), [(False, {f"{WORLD}, ranks 0 and 1"}), (True, {WORLD})])
def test_objects_sent_in_a_batch_use_the_whole_group(use_batch: bool, names: set[str], tmp_path: Path) -> None:
    ours = OneRank(RankPlace(0, 2), Messages(tmp_path), lambda _: None)
    with fake_ranks(2):
        ours._counted("send_object_list", ours._objects.send)([1], dst=1, use_batch=use_batch)
    assert set(ours.communicators.by_name) == names


def test_what_is_on_the_cpu_needs_no_communicator() -> None:
    communicators = Communicators()
    with fake_ranks(2), Seen(communicators):
        dist.all_reduce(torch.ones(2))
    assert not communicators.by_name
    assert communicators.nccl_bytes == 0
