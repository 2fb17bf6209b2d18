"""Results with sizes that depend on values: computed if the values are known, and otherwise assumed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.assumptions import EXPECTED, LEAST
from gpuledger.simulate.temporaries.spaces import argument

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.dispatch import SimulatedMode

aten = torch.ops.aten
MASKS = (torch.bool, torch.uint8)


class CodeLine(str):
    """``name.py:12``, with the path of the file."""

    file: str = ""


_OWN = "/gpuledger/simulate/"


def caller() -> CodeLine:
    """Return file and line of the program's running code."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" not in file and "/gpuledger/" not in file and not file.startswith("<"):
            place = CodeLine(f"{file.rpartition('/')[2]}:{frame.f_lineno}")
            place.file = file
            return place
        frame = frame.f_back
    return CodeLine("the program")


def without_own_frames(error: BaseException) -> BaseException:
    """Return an error with a traceback that has no frames of the simulation, as these would keep tensors alive.

    A program that handles an out-of-memory error has the frames of its own code, and of torch's, as on a GPU.
    """
    kept, trace = [], error.__traceback__
    while trace is not None:
        if _OWN not in trace.tb_frame.f_code.co_filename:
            kept.append(trace)
        trace = trace.tb_next
    made: TracebackType | None = None
    for trace in reversed(kept):
        made = TracebackType(made, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    return error.with_traceback(made)


def fakes_of(mode: SimulatedMode, real: Any, most: int = 0) -> Any:
    """Return fake tensors with the shapes of real ones, in storages of ``most`` elements if they are not empty."""
    if not isinstance(real, torch.Tensor):
        return tuple(fakes_of(mode, inner, most) for inner in real)
    if real.dim() != 1 or not 0 < real.numel() < most:
        return mode.make(real.shape, real)
    whole = mode.make((most,), real)
    with mode.fake_mode:
        return whole.as_strided(real.shape, (1,))


def index_masked(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of indexing with masks. CUDA keeps the positions of a mask's entries during the operator."""
    if not any(index is not None and index.dtype in MASKS for index in args[1]):
        return NotImplemented
    places, sizes_bytes = positions(mode, args[1])
    with mode.device.borrow(sizes_bytes, func):
        result = mode.fake(aten.index.Tensor, (args[0], places), kwargs)
        mode.account(func, result)
    real = mode.values.compute(func, args, kwargs)
    if real is not None and real.shape == result.shape:
        mode.values.keep(result, real, any(mode.values.is_assumed(index) for index in args[1] if index is not None))
    return result


def positions(mode: SimulatedMode, indices: Any) -> tuple[list[Any], list[int]]:
    """Return indices with the positions of each mask's entries in its place, and the bytes of all positions."""
    places: list[Any] = []
    sizes_bytes: list[int] = []
    for index in indices:
        if index is None or index.dtype not in MASKS:
            places.append(index)
            continue
        count = count_set(mode, index)
        places += [mode.make((count,), index, torch.int64) for _ in range(index.dim())]
        sizes_bytes.append(count * index.dim() * 8)
    return places, sizes_bytes


def count_set(mode: SimulatedMode, mask: torch.Tensor) -> int:
    """Return how many entries of a mask are set: computed, or assumed with a note."""
    values = mode.values
    if values.of(mask) is None or values.is_assumed(mask):
        mode.say(f"{caller()}: a mask's values are not computed, so half of its entries were assumed to be set.")
    real = values.mask(mask)
    if real is not None:
        return int(real.count_nonzero())
    return _share(mode, mask.numel())


def _share(mode: SimulatedMode, largest: int) -> int:
    mode.values.was_assumed = True
    mode.values.note_masks()
    if mode.values.assumption == LEAST:
        return 0
    return -(-largest // 2) if mode.values.assumption == EXPECTED else largest


def _nonzero(mode: SimulatedMode, args: Any, _kwargs: Any) -> Any:
    data = args[0]
    return mode.make((count_set(mode, data), data.dim()), data, torch.int64)


def _where(mode: SimulatedMode, args: Any, kwargs: Any) -> Any:
    """Return what ``torch.where`` of one argument returns without autograd, which otherwise calls ``nonzero``.

    So does ``nonzero(as_tuple=True)``. The tensors are views of one.
    """
    return _nonzero(mode, args, kwargs).unbind(1)


def _masked_select(mode: SimulatedMode, args: Any, _kwargs: Any) -> Any:
    data, mask = args[:2]
    copies = math.prod(torch.broadcast_shapes(data.shape, mask.shape)) // max(mask.numel(), 1)
    return mode.make((count_set(mode, mask) * copies,), data)


def _different(first: int) -> Callable[[SimulatedMode, Any, Any], Any]:
    """Return what makes different values, places and counts. The two last are asked for from argument ``first`` on."""

    def sized(mode: SimulatedMode, args: Any, kwargs: Any) -> Any:
        say_largest(mode, "unique")
        names = ("return_inverse", "return_counts")
        asked = [argument(args, kwargs, first + place, name, False) for place, name in enumerate(names)]
        count = args[0].numel()
        others = (mode.make((count if one else 0,), args[0], torch.int64) for one in asked)
        return (mode.make((count,), args[0]), *others)

    return sized


def _nms(mode: SimulatedMode, args: Any, _kwargs: Any) -> Any:
    """Return the boxes that torchvision keeps: all of them. A detector then takes as many as it needs."""
    say_largest(mode, "nms")
    return mode.make((args[0].shape[0],), args[0], torch.int64)


def _index(mode: SimulatedMode, args: Any, kwargs: Any) -> Any:
    places, _ = positions(mode, args[1])
    return mode.fake(aten.index.Tensor, (args[0], places), kwargs)


def _bincount(mode: SimulatedMode, args: Any, kwargs: Any) -> Any:
    """Return counts of ``minlength`` values; an index above it would be an error in nearly every program."""
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    if not least:
        return NotImplemented
    return mode.make((least,), args[0] if weights is None else weights, torch.int64 if weights is None else None)


def histogram(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return ``histc``, which has integers on a GPU and not on the CPU."""
    bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
    result = mode.make((bins,), args[0])
    mode.account(func, result)
    known = mode.values.of(args[0])
    if known is not None:
        real = aten.histc.default(known.double(), *args[1:], **kwargs)
        mode.values.keep(result, real, mode.values.is_assumed(args[0]))
    return result


def _ctc_loss(mode: SimulatedMode, args: Any, _kwargs: Any) -> Any:
    """Return one loss per sequence, and the log probabilities of all positions on and between targets, per time."""
    scores, targets, lengths = args[0], args[1], args[3]
    known = mode.values.of(lengths, reads=True) if isinstance(lengths, torch.Tensor) else torch.tensor(lengths)
    if known is None or isinstance(known, FakeTensor):
        say_largest(mode, "ctc_loss")
        longest = targets.shape[1] if targets.dim() > 1 else targets.numel()
    else:
        longest = int(known.max())
    batch = scores.shape[1]
    return mode.make((batch,), scores), mode.make((batch, scores.shape[0], 2 * longest + 1), scores)


def say_largest(mode: SimulatedMode, name: str) -> None:
    """Say that the largest possible size was used."""
    mode.say(f"{caller()}: the size of {name}'s result depends on values, so the largest possible size was used.")


RESIZED = ("_unique2", "unique_consecutive")
"""Operators with one-dimensional results that keep the storage for all elements of the data."""
SIZES: dict[str, Callable[[SimulatedMode, Any, Any], Any]] = {
    "nonzero": _nonzero,
    "where": _where,
    "nonzero_numpy": _where,
    "masked_select": _masked_select,
    "_unique2": _different(2),
    "unique_consecutive": _different(1),
    "nms": _nms,
    "index": _index,
    "bincount": _bincount,
    "_ctc_loss": _ctc_loss,
}
"""Operators with a result size that depends on values -> the result for values that are not known."""
