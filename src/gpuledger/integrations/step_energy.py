"""The energy of one call of something, measured over many calls between two ticks of the GPU's counter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpuledger.cards.card import Card, CardQuantity, torch_uuid
from gpuledger.cards.opening import open_cards
from gpuledger.errors import GpuLedgerError, NoDeviceError

_PATIENCE_S = 2.0
"""Time in s after which a counter without a change counts as not working. NVIDIA's changes every 100 ms."""


@dataclass(frozen=True)
class CallEnergy:
    """Energy of one call in J with its uncertainty, from ``calls`` calls in ``seconds``."""

    joules: float
    uncertainty_j: float
    calls: int
    seconds: float


def measure_call_energy(
    call: Callable[[], object],
    read_j: Callable[[], float],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> CallEnergy:
    """Return the joules one call takes, from calls made one after another for at least ``seconds``.

    The window begins with the call in which the counter first moves and ends with one in which it moves after
    ``seconds``. Both edges are known to one call, so the uncertainty is what one call takes at each.

    Args:
        call: What is measured; it returns when the GPU has done its work.
        read_j: The GPU's energy counter in joules.
        seconds: How long at least. Below ten ticks of the counter the edges are a large part of it.
        clock: Seconds, monotonic.

    Raises:
        GpuLedgerError: the counter stands still.

    Source: the GPU's energy counter from tick to tick.
    """
    _, start_j = _call_until_it_moves(call, read_j, clock)
    start_s, calls = clock(), 0
    while clock() - start_s < seconds:
        call()
        calls += 1
    made, end_j = _call_until_it_moves(call, read_j, clock)
    calls, took_s = calls + made, clock() - start_s
    each_j = (end_j - start_j) / calls
    return CallEnergy(each_j, 2 * each_j / calls, calls, took_s)


def card_energy_counter() -> Callable[[], float]:
    """Return a function that reads the energy counter of torch's current GPU, in joules.

    Raises:
        NoDeviceError: there is no GPU, or it has no counter that may be read.
    """
    import torch

    if not torch.cuda.is_available():
        raise NoDeviceError("PyTorch has no CUDA GPU here")
    card = open_cards().find(torch_uuid(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    if card is None:
        raise NoDeviceError("the GPU's energy counter cannot be read: NVML does not list the GPU that PyTorch uses")
    _read_j(card)
    return partial(_read_j, card)


def _read_j(card: Card) -> float:
    energy_mj = card.read_energy_mj()
    if energy_mj is None:
        raise NoDeviceError(f"the GPU's energy counter cannot be read: {card.why_missing(CardQuantity.ENERGY)}")
    return energy_mj / 1000


def _call_until_it_moves(
    call: Callable[[], object], read_j: Callable[[], float], clock: Callable[[], float]
) -> tuple[int, float]:
    """Return how many calls were made until the counter moved, and what it then showed."""
    before_j, calls, start_s = read_j(), 0, clock()
    while True:
        call()
        calls += 1
        now_j = read_j()
        if now_j != before_j:
            return calls, now_j
        if clock() - start_s > _PATIENCE_S:
            raise GpuLedgerError("the GPU's energy counter does not change")
