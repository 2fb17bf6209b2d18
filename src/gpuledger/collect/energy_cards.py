"""Which cards this process computes on, and waiting for what they have under way."""

from __future__ import annotations

import torch


def cards_in_use() -> list[tuple[int, str]]:
    """Return ``(device_idx, UUID)`` of every card on which this process holds memory."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return []
    found = []
    for device_idx in range(torch.cuda.device_count()):
        uuid = getattr(torch.cuda.get_device_properties(device_idx), "uuid", None)
        if uuid is not None and torch.cuda.memory_reserved(device_idx):
            found.append((device_idx, f"GPU-{uuid}"))
    return found


def wait_for(cards: list[tuple[int, str]]) -> None:
    """Return when the cards have done what was launched; at once while a graph is captured: waiting fails."""
    on_cards = [device_idx for device_idx, _ in cards if device_idx >= 0]
    if on_cards and not torch.cuda.is_current_stream_capturing():
        for device_idx in on_cards:
            torch.cuda.synchronize(device_idx)


def runs_with_others() -> bool:
    """Return whether other processes train along, so that a pause of one keeps all of them waiting."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
