"""The GPUs on which this process computes, and synchronization with them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch

from gpuledger.cards.card import torch_uuid
from gpuledger.cards.opening import has_driver
from gpuledger.collect.adapter import torch_private
from gpuledger.model.energy_window import METERED_CARDS

LONGEST_WAIT_S = 10.0
"""Maximum wait for a GPU if other ranks train along: the GPU can be waiting for a rank that waits for this process."""

LOOK_S = 0.0002
"""Interval of checks whether the GPU has finished."""


def can_use_cuda() -> bool:
    """Return whether this process could initialize CUDA. Does not load the driver."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1")
    return torch.version.cuda is not None and not hidden and has_driver()


def cards_in_use() -> list[tuple[int, str]]:
    """Return ``(device_idx, UUID)`` of every GPU on which this process has allocated memory."""
    if not torch.cuda.is_initialized():  # is_available would initialize the driver in a program that uses no GPU
        return []
    found = []
    for device_idx in range(torch.cuda.device_count()):
        uuid = getattr(torch.cuda.get_device_properties(device_idx), "uuid", None)
        if uuid is not None and torch.cuda.memory_reserved(device_idx):
            found.append((device_idx, torch_uuid(uuid)))
    return found


def metered_cards(run_directory: Path) -> frozenset[str]:
    """Return the UUIDs of the GPUs with an energy meter running beside the program."""
    try:
        return frozenset(json.loads((run_directory / METERED_CARDS).read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no energy meter runs
        return frozenset()


def any_is_metered(run_directory: Path) -> bool:
    """Return whether an energy meter reads a GPU on which this process has allocated memory."""
    metered = metered_cards(run_directory)
    return any(uuid in metered for _, uuid in cards_in_use())


def wait_for(cards: list[tuple[int, str]]) -> None:
    """Wait until the GPUs have finished the launched work. Returns at once during graph capture, where waiting fails.

    If other ranks train along, only the current streams are waited for, and only for a limited time. A kernel on
    another stream can be waiting for data of a rank that waits for this process.
    """
    on_cards = [device_idx for device_idx, _ in cards if device_idx >= 0]
    if not on_cards or is_capturing():
        return
    for device_idx in on_cards:
        if runs_with_others():
            _wait_for_stream(device_idx)
        else:
            torch.cuda.synchronize(device_idx)


def _wait_for_stream(device_idx: int) -> None:
    reached = torch.cuda.Event()
    reached.record(torch.cuda.current_stream(device_idx))
    until_s = time.monotonic() + LONGEST_WAIT_S
    while not reached.query() and time.monotonic() < until_s:
        time.sleep(LOOK_S)


class WorkEnd:
    """When the GPUs finish the work that this process has launched, without waiting for it at every step.

    Constructed while the GPUs are idle. :meth:`mark` launches an event, which a GPU reaches after all earlier work of
    the current stream.

    Args:
        cards: ``(device_idx, UUID)`` of the GPUs.
        started_ns: The present time, in Unix ns.
    """

    def __init__(self, cards: list[tuple[int, str]], started_ns: int) -> None:
        self._started_ns = started_ns
        devices = [] if is_capturing() else [device_idx for device_idx, _ in cards if device_idx >= 0]
        self._starts = {one: self._launch(one) for one in devices}
        self._ends: dict[int, torch.cuda.Event] = {}

    def mark(self) -> None:
        """Launch an event behind the work launched until now. Not during graph capture, where that fails."""
        if self._starts and not is_capturing():
            self._ends = {one: self._launch(one, self._ends.get(one)) for one in self._starts}

    def reached_ns(self) -> int | None:
        """Return when the GPUs had finished the work before the last mark, in Unix ns. Waits for them.

        None without a mark, if a GPU does not finish within LONGEST_WAIT_S, or after a CUDA error of the program.
        """
        until_s = time.monotonic() + LONGEST_WAIT_S
        try:
            while not all(end.query() for end in self._ends.values()):
                if time.monotonic() >= until_s:
                    return None
                time.sleep(LOOK_S)
            spans_ms = [self._starts[one].elapsed_time(end) for one, end in self._ends.items()]
        except RuntimeError:  # the program ends because of it
            return None
        return self._started_ns + round(max(spans_ms) * 1e6) if spans_ms else None

    def _launch(self, device_idx: int, event: torch.cuda.Event | None = None) -> torch.cuda.Event:
        event = event or torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device_idx))
        return event


def is_capturing() -> bool:
    """Return whether this thread is capturing a CUDA graph."""
    return torch_private.has_cuda_context() and torch.cuda.is_current_stream_capturing()


def runs_with_others() -> bool:
    """Return whether other processes train along, so that pausing one of them pauses all."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
