"""Give priority to a memory history that the program records itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.instrument import Observation
from gpuledger.collect.adapter.observer import Absorbs, Observer
from gpuledger.collect.adapter.torch_entrances import (
    list_segments,
    record_memory_history,
    set_memory_tags,
    take_snapshot,
)


class UserHistory:
    """Detects when the program starts its own memory history or sets its own allocation metadata.

    The recording ends before that, or reads the program's history from then on. A snapshot that the program takes
    before it contains no event and no stack of gpuledger, and a later one no event of our own snapshots. Blocks keep
    their stacks after the recording, so keep this until the measurements have ended.

    Args:
        give_way: Called before the program starts, changes or stops its history, or sets metadata.
        absorbs: Handles an exception raised in gpuledger's code.
        starts: Called instead before the program starts a history of all events. Returns whether it was handled.
        has_own: Whether the program keeps a history already.
    """

    def __init__(
        self,
        give_way: Callable[[], None],
        absorbs: Absorbs,
        *,
        starts: Callable[[], bool] = lambda: False,
        has_own: bool = False,
    ) -> None:
        def enter(enabled: Any, *_: Any) -> None:
            nonlocal has_own
            if not torch_private.history_is_ours():
                has_own = True
                torch_private.snapshots.clear()
                if not (enabled == "all" and starts()):
                    give_way()

        def give_way_to_tags(*_: Any) -> None:
            give_way()

        def is_without(*_: Any) -> bool:
            return not has_own

        self._observations = [
            Observation(record_memory_history(), Observer(enter, absorbs=absorbs)),
            Observation(take_snapshot(), Observer(is_without, _of_snapshot, absorbs=absorbs)),
            Observation(list_segments(), Observer(is_without, _of_segments, absorbs=absorbs)),
        ]
        tags = set_memory_tags()
        if tags is not None:
            self._observations.append(Observation(tags, Observer(give_way_to_tags, absorbs=absorbs)))

    def remove(self) -> None:
        """Stop detecting."""
        while self._observations:
            self._observations.pop().remove()


def _of_snapshot(is_without: bool, snapshot: Any) -> None:
    """Leave out what is ours: all events and stacks, or in the program's own history the events of our snapshots."""
    for trace in snapshot.get("device_traces", ()):
        trace[:] = [] if is_without else _without_our_snapshots(trace)
    _of_segments(is_without, snapshot.get("segments", ()))


def _of_segments(is_without: bool, segments: Any) -> None:
    """Leave out stacks, all of which are ours, or note that the program's own history has an event of its snapshot."""
    if is_without:
        _remove_stacks(segments)
    else:
        torch_private.note_snapshot(is_ours=False)


def _without_our_snapshots(trace: list[Any]) -> list[Any]:
    """Return the events without those of our snapshots. The last of all snapshots have the last of these events."""
    are_ours = reversed(torch_private.snapshots)
    kept = [event for event in reversed(trace) if event.get("action") != "snapshot" or not next(are_ours, False)]
    return kept[::-1]


def _remove_stacks(segments: Any) -> None:
    for segment in segments:
        for held in (segment, *segment["blocks"]):
            if "frames" in held:
                held["frames"] = []
