"""Leaving a block of ``torch.inference_mode`` in which a dispatch mode was taken out.

Such a block remembers at its beginning which operators go through Python, and puts that back at its end. Where our mode
was at work at the beginning and is gone at the end, every operator of the program would then fail ("Hit Python dispatch
key but no arguments had PyInterpreter"). So the end of each block that is open when the mode goes is observed.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.instrument import Absorbs, CannotInstrumentError, Observation, Observer
from gpuledger.collect.adapter.torch_entrances import torchs_own


class InferenceBlocks:
    """Observes the ends of the blocks that this thread is in, until it is in none any more.

    Args:
        absorbs: Takes what is raised in our code.
    """

    def __init__(self, absorbs: Absorbs) -> None:
        self._thread = threading.get_ident()
        end = torchs_own(torch.inference_mode.__exit__)
        observer = Observer(lambda *_: True, self._left, self._failed, absorbs=absorbs)
        self._observation: Observation | None = Observation(end, observer)

    def _left(self, _token: bool, _result: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        torch_private.bypass_python_without_modes()
        observation = self._observation
        if observation is not None and not torch.is_inference_mode_enabled():
            self._observation = None
            observation.remove()

    def _failed(self, token: bool) -> None:
        self._left(token, None)


def may_take_out_mode(absorbs: Absorbs) -> bool:
    """Return whether a dispatch mode can go now; where this is inside a block, its end is observed from now on."""
    if not torch.is_inference_mode_enabled():
        return True
    try:
        InferenceBlocks(absorbs)
    except CannotInstrumentError:
        return False
    return True
