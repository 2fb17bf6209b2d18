"""Samples around the first collective of each process group, and none of our code in a collective afterwards."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_ranks import fake_ranks

torch = pytest.importorskip("torch")
from torch import distributed  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from gpuledger.collect.adapter.guard import Guard  # noqa: E402
from gpuledger.collect.memory.first_collectives import Entry, FirstCollectives  # noqa: E402

PAIR = ["collective_start", "collective_end"]


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def found() -> list[Entry]:
    """Return where all first communications so far are added after each one."""
    return []


@pytest.fixture
def watch(reasons: list[str], found: list[Entry]) -> Iterator[FirstCollectives]:
    watch = FirstCollectives(
        reasons.append,
        Guard(lambda error: pytest.fail(str(error))),
        lambda communications: found.extend(communications),
    )
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
        assert reasons == PAIR * 2
        distributed.all_reduce(sent)  # NCCL scatters by transfers, so this one connects the ranks in another way
        distributed.broadcast(sent, 0)
        assert reasons == PAIR * 3
        other = distributed.new_group([0, 1])
        distributed.send(sent, 1, group=other)
        assert reasons == PAIR * 4


def test_each_first_communication_is_noted_with_its_group(watch: FirstCollectives, found: list[Entry]) -> None:
    with fake_ranks(4):
        watch.install()
        distributed.all_reduce(torch.ones(2))
        found.clear()
        distributed.send(torch.ones(2), 1, group=distributed.new_group([0, 1], group_desc="stages"))
    named = [(one["group"], one["size"], one["call"]) for one in found]
    assert named == [("the default process group", 4, "all_reduce"), ("stages", 2, "send")]
    assert found[0]["t_ns"] <= found[1]["t_ns"]


def test_a_group_of_other_ranks_is_passed_over(watch: FirstCollectives, reasons: list[str]) -> None:
    with fake_ranks(4), warnings.catch_warnings(action="ignore"):
        watch.install()
        distributed.all_reduce(torch.ones(2), group=distributed.new_group([1, 2]))
    assert reasons == []


def test_each_dimension_of_a_mesh_has_its_first_communication(
    watch: FirstCollectives, found: list[Entry], reasons: list[str]
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    with fake_ranks(4):
        watch.install()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        replicated = [Replicate(), Replicate()]
        with FakeTensorMode():
            DTensor.from_local(torch.ones(4, 4), mesh, [Partial(), Replicate()], run_check=False).redistribute(
                mesh, replicated
            )
        assert reasons == [], "shapes alone were computed"
        for placements in ([Partial(), Replicate()], [Partial(), Partial()]):
            part = DTensor.from_local(torch.ones(4, 4), mesh, placements, run_check=False)
            part.redistribute(mesh, replicated)
    assert [one["group"] for one in found[-2:]] == ["mesh_dp", "mesh_tp"]


def test_a_dtensor_communicates_in_the_group_of_its_mesh(
    watch: FirstCollectives, reasons: list[str], found: list[Entry]
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    with fake_ranks(4):
        watch.install()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        whole = DTensor.from_local(torch.ones(4, 4), mesh, [Replicate(), Replicate()], run_check=False)
        whole.redistribute(mesh, [Replicate(), Shard(0)])  # each rank takes its part of what it has
        assert not reasons
        for _ in range(2):
            part = DTensor.from_local(torch.ones(4, 4), mesh, [Replicate(), Partial()], run_check=False)
            part.redistribute(mesh, [Replicate(), Replicate()])
        assert reasons == PAIR
        DTensor.from_local(torch.ones(4, 4), mesh, [Shard(0), Replicate()], run_check=False).full_tensor()
    assert [(one["group"], one["size"]) for one in found[-2:]] == [("mesh_tp", 2), ("mesh_dp", 2)]


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

    watch = FirstCollectives(fail, Guard(caught.append), lambda **_: None)
    watch.install()
    try:
        distributed.all_reduce(torch.ones(2))
    finally:
        watch.remove()
    assert [type(error) for error in caught] == [ZeroDivisionError]
