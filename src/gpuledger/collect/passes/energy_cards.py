"""Which GPUs this process computes on, and waiting for what they have under way."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from gpuledger.cards.card import torch_uuid
from gpuledger.model.energy_window import METERED_CARDS

LONGEST_WAIT_S = 10.0
"""How long a GPU is waited for where other ranks work along: it may wait for one of them, which waits for its own."""

LOOK_S = 0.0002
"""How often is looked whether the GPU has done what was launched."""


def cards_in_use() -> list[tuple[int, str]]:
    """Return ``(device_idx, UUID)`` of every GPU on which this process holds memory."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return []
    found = []
    for device_idx in range(torch.cuda.device_count()):
        uuid = getattr(torch.cuda.get_device_properties(device_idx), "uuid", None)
        if uuid is not None and torch.cuda.memory_reserved(device_idx):
            found.append((device_idx, torch_uuid(uuid)))
    return found


def metered_cards(run_directory: Path) -> frozenset[str]:
    """Return the UUIDs of the GPUs whose energy somebody reads while the program runs."""
    try:
        return frozenset(json.loads((run_directory / METERED_CARDS).read_text(encoding="utf-8")))
    except (OSError, ValueError):  # nobody does
        return frozenset()


def wait_for(cards: list[tuple[int, str]]) -> None:
    """Return when the GPUs have done what was launched; at once while a graph is captured: waiting fails.

    Where other ranks work along only the current streams are waited for, and not without end. A kernel on another
    stream may receive what a rank sends later that now waits for us.
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


def is_capturing() -> bool:
    """Return whether this thread captures a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def runs_with_others() -> bool:
    """Return whether other processes train along, so that a pause of one keeps all of them waiting."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
