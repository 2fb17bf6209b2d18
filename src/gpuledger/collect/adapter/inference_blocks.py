"""Removal of a dispatch mode inside a ``torch.inference_mode`` block or a compiled function.

Such a block saves on entry which operators dispatch to Python, and restores that on exit. If gpuledger's mode was
active on entry and is removed before the exit, the restored state sends every operator to a mode that no longer exists
("Hit Python dispatch key but no arguments had PyInterpreter"). So the exit of each block that is open when the mode is
removed is observed, and the state corrected there.

A compiled function restores the state in the same way. Nothing that can be observed runs at its end, so a mode is not
removed inside of it.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation
from gpuledger.collect.adapter.observer import Absorbs, Observer
from gpuledger.collect.adapter.torch_entrances import torchs_own

_COMPILED_CALL = "torch/_dynamo/eval_frame.py"
"""End of the file name of the frames that call a compiled function."""
_MODULE_CALL = "OptimizedModule.__call__"
"""The function of that file that calls the hooks of a compiled module, and then its compiled function."""


class InferenceBlocks:
    """Observes the exits of the ``inference_mode`` blocks that this thread is in, until the outermost has ended.

    Args:
        absorbs: Handles an exception raised in gpuledger's code.
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
    """Return whether a dispatch mode can be removed now. If blocks are open, their exits are observed from now on."""
    if _is_in_compiled_call(sys._getframe()):
        return False
    if not torch.is_inference_mode_enabled():
        return True
    try:
        InferenceBlocks(absorbs)
    except CannotInstrumentError:
        return False
    return True


def may_enter_mode() -> bool:
    """Return whether a dispatch mode can be entered now. It would not be seen in, nor outlive, a compiled function."""
    return not _is_in_compiled_call(sys._getframe())


def _is_in_compiled_call(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_COMPILED_CALL) and code.co_qualname != _MODULE_CALL:
            return True
        frame = frame.f_back
    return False
