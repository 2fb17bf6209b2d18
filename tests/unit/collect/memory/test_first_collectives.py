"""Samples around the first collective of each process group, and none of our code in a collective afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_ranks import fake_ranks

torch = pytest.importorskip("torch")
from torch import distributed  # noqa: E402

from gpuledger.collect.adapter.guard import Guard  # noqa: E402
from gpuledger.collect.memory.first_collectives import FirstCollectives  # noqa: E402

PAIR = ["collective_start", "collective_end"]


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def watch(reasons: list[str]) -> Iterator[FirstCollectives]:
    watch = FirstCollectives(reasons.append, Guard(lambda error: pytest.fail(str(error))))
    yield watch
    watch.remove()


def begin(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Have a process group, and none afterwards."""
    yield begin(tmp_path)
    distributed.destroy_process_group()


def test_only_the_first_collective_of_each_group_is_sampled(
    watch: FirstCollectives, reasons: list[str], group: None
) -> None:
    before = inspect.unwrap(distributed.all_reduce).__code__
    watch.install()
    distributed.all_reduce(torch.ones(2))
    assert reasons == PAIR
    distributed.all_reduce(torch.ones(2), group=distributed.group.WORLD)
    distributed.barrier()
    assert reasons == PAIR
    other = distributed.new_group([0])
    distributed.broadcast(torch.ones(2), 0, group=other)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), process_group=other)
    assert reasons == PAIR * 2
    watch.remove()
    assert inspect.unwrap(distributed.all_reduce).__code__ is before


def test_a_transfer_between_two_ranks_is_sampled_apart_from_collectives(
    watch: FirstCollectives, reasons: list[str], tmp_path: Path
) -> None:
    with fake_ranks(4):
        watch.install()
        sent = torch.ones(2)
        distributed.scatter(sent, [torch.ones(2)] * 4)  # as DTensor does first
        assert reasons == PAIR
        calls = [distributed.P2POp(distributed.isend, sent, 1), distributed.P2POp(distributed.irecv, sent, 1)]
        for work in distributed.batch_isend_irecv(calls):
            work.wait()
        assert reasons == PAIR * 2
        distributed.send(sent, 2)
        distributed.all_reduce(sent)
        assert reasons == PAIR * 2
        other = distributed.new_group([0, 1])
        distributed.send(sent, 1, group=other)
        assert reasons == PAIR * 3


def test_a_wrapped_model_makes_the_first_collective(watch: FirstCollectives, reasons: list[str], group: None) -> None:
    watch.install()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    assert reasons == PAIR


def test_a_group_that_is_created_later_is_sampled_from_its_start(
    watch: FirstCollectives, reasons: list[str], tmp_path: Path
) -> None:
    watch.install()
    begin(tmp_path)
    try:
        assert reasons == PAIR  # given a device, it connects the ranks here
        distributed.all_reduce(torch.ones(2))
        assert reasons == PAIR * 2
    finally:
        distributed.destroy_process_group()


def test_a_collective_that_fails_is_sampled_and_raises_its_own_error(
    watch: FirstCollectives, reasons: list[str], group: None
) -> None:
    watch.install()
    with pytest.raises(TypeError, match=r"(?i)tensor"):
        distributed.all_reduce("no tensor")
    assert reasons == PAIR


def test_an_error_of_ours_does_not_reach_the_program(group: None) -> None:
    caught: list[BaseException] = []

    def fail(_reason: str) -> None:
        raise ZeroDivisionError

    watch = FirstCollectives(fail, Guard(caught.append))
    watch.install()
    try:
        distributed.all_reduce(torch.ones(2))
    finally:
        watch.remove()
    assert [type(error) for error in caught] == [ZeroDivisionError]
