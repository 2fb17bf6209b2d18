"""Objects that simulated ranks send to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuledger.simulate.ranks.messages import Messages, mark_ended, wanted_ranks
from gpuledger.simulate.ranks.place import RankError, RankPlace

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
