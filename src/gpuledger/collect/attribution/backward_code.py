"""Tell operators that autograd calls in backward from those of Python code in backward."""

from __future__ import annotations

from types import FrameType

import torch
from torch.autograd import graph

from gpuledger.collect.adapter import torch_private

_TORCH_FILES = torch.__file__.removesuffix("__init__.py")


def is_autograds_own(frame: FrameType | None) -> bool:
    """Return whether autograd itself calls an operator, and not Python code such as that of an ``autograd.Function``.

    Args:
        frame: The innermost Python frame that the operator is called from; None without one.
    """
    if torch_private.current_node() is None:
        return False
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH_FILES):
        if frame.f_code is graph._engine_run_backward.__code__:
            return True
        frame = frame.f_back
    return frame is None
