"""Objects that simulated ranks send to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from gpuledger.simulate.ranks.messages import Messages, mark_ended, wanted_ranks  # noqa: E402
from gpuledger.simulate.ranks.place import RankError, RankPlace  # noqa: E402

pytestmark = pytest.mark.torch


def test_objects_arrive_in_order_and_by_channel(tmp_path: Path) -> None:
    sender, receiver = Messages(tmp_path), Messages(tmp_path)
    for channel, value in (("a", 1), ("b", [2]), ("a", {"c": 3})):
        sender.send(channel, value)
    assert [receiver.receive(name, 0, "call()") for name in ("a", "a", "b")] == [1, {"c": 3}, [2]]
    assert wanted_ranks(tmp_path) == set(), "nothing had to wait"


def test_who_waits_asks_for_the_sender(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"call\(\) waits for an object of rank 5, which sent none within 0 s"):
        Messages(tmp_path, wait_s=0.0).receive("a", 5, "call()")
    assert wanted_ranks(tmp_path) == {5}


def test_an_ended_sender_is_not_waited_for(tmp_path: Path) -> None:
    mark_ended(tmp_path, 5)
    with pytest.raises(RankError, match="which ended without sending one") as caught:
        Messages(tmp_path).receive("a", 5, "call()")
    assert caught.value.waits


def test_environment_of_ranks_on_two_hosts() -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    for rank, expected in ((0, "0 12 0 8 0"), (7, "7 12 7 8 0"), (8, "8 12 0 4 1"), (11, "11 12 3 4 1")):
        environment = RankPlace(rank, 12).environment()
        assert " ".join(environment[name] for name in names) == expected


def test_a_simulated_tensor_arrives_with_its_shape(tmp_path: Path) -> None:
    with FakeTensorMode():
        sent = torch.empty_strided((4, 3), (1, 4), dtype=torch.bfloat16, device="meta", requires_grad=True)
    Messages(tmp_path).send("shapes", [sent, {"rows": 4}])
    got, other = Messages(tmp_path).receive("shapes", 0, "recv_object_list()")
    assert (got.shape, got.stride(), got.dtype, got.device.type) == ((4, 3), (1, 4), torch.bfloat16, "meta")
    assert got.requires_grad
    assert other == {"rows": 4}
