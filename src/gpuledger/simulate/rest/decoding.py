"""Shorten ``generate()`` of transformers: after some tokens, the memory of the others follows from their growth.

Each token of a decoder adds to its cache of keys and values. The program gets a result of the length that it asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional as F

from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches

TOKENS = 12
"""Tokens of a call that are simulated. The first two differ from the others: the prompt, and the first single token."""
_FIRST = 3
_CRITERIA, _MIXIN = "transformers.generation.stopping_criteria", "transformers.generation.utils"
_PIECES = 32
"""Blocks in which the memory of the other tokens is requested."""


@dataclass
class _Call:
    """One call of ``generate()``, or one within it by an assisting model."""

    is_open: bool
    held_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    missing: int = 0


class ShortenedDecoding:
    """Ends decoding early, and requests the memory that the rest of it would need.

    Args:
        device: The GPU.
        say: Gets a sentence when a call was shortened.
    """

    def __init__(self, device: SimulatedDevice, say: Callable[[str], None]) -> None:
        self._device = device
        self._say = say
        self._calls: list[_Call] = []

    def install(self, patches: Patches) -> None:
        """Patch transformers as soon as the program has imported it."""
        patches.when_imported(_CRITERIA, self._patch_criteria)
        patches.when_imported(_MIXIN, self._patch_generate)

    def _patch_criteria(self, patches: Patches, module: ModuleType) -> None:
        plain = module.MaxLengthCriteria.__call__

        def call(criteria: Any, input_ids: torch.Tensor, scores: Any, **how: Any) -> Any:
            done = plain(criteria, input_ids, scores, **how)
            if self._calls and self._device.holds(input_ids) and self._ends(input_ids.shape[-1], criteria.max_length):
                return torch.ones_like(done)
            return done

        patches.put(module.MaxLengthCriteria, "__call__", call)

    def _patch_generate(self, patches: Patches, module: ModuleType) -> None:
        plain = module.GenerationMixin.generate

        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            config = kwargs.get("generation_config") or getattr(model, "generation_config", None)
            asked = (kwargs.get(name, getattr(config, name, False)) for name in ("output_scores", "output_logits"))
            call = _Call(not any(asked))
            self._device.high_bytes = 0
            self._calls.append(call)
            self._device.decodes = True
            try:
                found = plain(model, *args, **kwargs)
            finally:
                self._calls.pop()
                self._device.decodes = bool(self._calls)
            return _lengthened(found, call.missing) if call.missing else found

        patches.put(module.GenerationMixin, "generate", generate)

    def _ends(self, length: int, most: int) -> bool:
        """Return whether the innermost call ends before its length, after the memory of the rest was requested."""
        call, device = self._calls[-1], self._device
        if call.missing:
            return True
        call.held_bytes.append(device.counters.allocated_bytes)
        call.peak_bytes.append(max(device.high_bytes, call.held_bytes[-1]))
        device.high_bytes = 0
        left = most - length
        if not call.is_open or left <= 0 or len(call.held_bytes) < TOKENS:
            return False
        span = len(call.peak_bytes) - 1 - _FIRST
        each_bytes = max(call.peak_bytes[-1] - call.peak_bytes[_FIRST], 0) / span
        more_bytes = int(call.peak_bytes[-1] + each_bytes * left - call.held_bytes[-1])
        call.missing = left
        with device.borrow([more_bytes // _PIECES] * _PIECES, "tokens that are not simulated"):
            pass
        self._say(
            f"generate(): {len(call.held_bytes)} of {len(call.held_bytes) + left} tokens were simulated. The memory of "
            "the others follows from the growth of these."
        )
        return True


def _lengthened(found: Any, missing: int) -> Any:
    """Return a result of ``generate()`` with more tokens in each sequence."""
    if isinstance(found, torch.Tensor):
        return F.pad(found, (0, missing))
    if isinstance(getattr(found, "sequences", None), torch.Tensor):
        found.sequences = F.pad(found.sequences, (0, missing))
    return found
