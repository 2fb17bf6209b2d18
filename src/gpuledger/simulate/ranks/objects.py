"""Collectives of Python objects, with the objects of other simulated ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from gpuledger.simulate.gpu.sizes import caller
from gpuledger.simulate.ranks.messages import Messages
from gpuledger.simulate.ranks.place import RankError

_REPLACED = (
    *("send_object_list", "recv_object_list", "broadcast_object_list"),
    *("scatter_object_list", "all_gather_object", "gather_object"),
)


class ObjectCollectives:
    """Replaces the collectives of ``torch.distributed`` for objects.

    Args:
        rank: This rank.
        messages: Exchanges objects with the other ranks.
        say: Gets a sentence for each assumption.
    """

    def __init__(self, rank: int, messages: Messages, say: Callable[[str], None]) -> None:
        self._rank, self._messages, self._say = rank, messages, say

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return name in ``torch.distributed`` -> function."""
        ours = (self.send, self.receive, self.broadcast, self.scatter, self.all_gather, self.gather)
        return dict(zip(_REPLACED, ours, strict=True))

    def send(self, object_list: Any, dst: Any = None, group: Any = None, device: Any = None, **how: Any) -> None:
        """Send a list of objects to one rank."""
        other = _global_rank(group, dst, how.get("group_dst"))
        self._messages.send(f"{_name(group)}-from-{self._rank}-to-{other}", list(object_list))

    def receive(self, object_list: Any, src: Any = None, group: Any = None, device: Any = None, **how: Any) -> int:
        """Receive a list of objects from one rank. Return that rank."""
        other = _global_rank(group, src, how.get("group_src"))
        if other is None:
            raise RankError(f"{caller()}: recv_object_list() accepts any rank", "Name the rank with src=")
        channel = f"{_name(group)}-from-{other}-to-{self._rank}"
        _fill(object_list, self._messages.receive(channel, other, "recv_object_list()"))
        return int(other)

    def broadcast(self, object_list: Any, src: Any = None, group: Any = None, device: Any = None, **how: Any) -> None:
        """Replace a list of objects by that of one rank."""
        other = _global_rank(group, src, how.get("group_src"))
        _fill(
            object_list, self._of_one(f"{_name(group)}-broadcast", other or 0, object_list, "broadcast_object_list()")
        )

    def scatter(self, output: Any, objects: Any = None, src: Any = None, group: Any = None, **how: Any) -> None:
        """Receive this rank's object of the list of one rank."""
        other = _global_rank(group, src, how.get("group_src"))
        every = self._of_one(f"{_name(group)}-scatter", other or 0, objects, "scatter_object_list()")
        output[0] = every[dist.get_rank(group)]

    def all_gather(self, object_list: Any, obj: Any, group: Any = None) -> None:
        """Assume that every rank has the same object."""
        _fill(object_list, [copy.deepcopy(obj) for _ in range(dist.get_world_size(group))])
        if dist.get_world_size(group) > 1:
            self._say(f"{caller()}: all_gather_object() returned this rank's object for every rank.")

    def gather(self, obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, **how: Any) -> None:
        """Assume that every rank has the same object."""
        if object_gather_list is not None:
            self.all_gather(object_gather_list, obj, group)

    def _of_one(self, channel: str, other: int, own: Any, call: str) -> Any:
        """Return the objects of one rank. It sends them once for all others."""
        channel = f"{channel}-from-{other}"
        if other == self._rank:
            self._messages.send(channel, list(own))
            return list(own)
        return self._messages.receive(channel, other, call)


def _global_rank(group: Any, rank: int | None, group_rank: int | None) -> Any:
    """Return the rank in the world of a rank that is named in either way; None if it is named in neither."""
    return dist.get_process_group_ranks(group)[group_rank] if group_rank is not None else rank


def _name(group: Any) -> str:
    """Return a name of a group that is the same on all its ranks."""
    ranks = dist.get_process_group_ranks(group)
    return "world" if len(ranks) == dist.get_world_size() else "-".join(map(str, ranks))


def _fill(target: Any, values: Sequence[Any]) -> None:
    for place, value in enumerate(values):
        target[place] = value
