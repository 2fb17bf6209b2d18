"""Input shapes of the outermost modules. The shape of one tensor gives the samples and tokens of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

from torch import Tensor, nn

from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    is_batched,
    is_complex,
    is_floating,
    known_sizes,
    tensors_in,
    without_overrides,
)
from gpuledger.collect.adapter.torch_entrances import is_tracing
from gpuledger.model.journal.journal import Part

LONGEST = 4_000
"""Maximum number of rows, each a run of consecutive calls with the same shape."""

LEVELS = 2
"""Maximum nesting depth of a call's arguments that is searched for the first tensor."""

MODULES = 16
"""Maximum number of outermost modules whose inputs are stored."""

CHANNELS = (1, 3)
"""Channels of an image."""

UNKNOWN_ROWS = 0
"""Stored as the batch size of a call of which the batch's dimension is not known.

``torch.vmap`` hides a dimension: it can be the batch or another. In a model with recurrent or attention layers without
``batch_first``, the first dimension can be the batch or the sequence.
"""

Shape = tuple[int, ...]


class _Inputs:
    """Input shapes of one outermost module.

    Attributes:
        tokens: Whether the last input was of token ids.
        shapes: Number of calls by shape.
        calls: Rows of first step, last step, batch size and length.
        per_step: Number of calls by step.
    """

    def __init__(self) -> None:
        self.tokens = False
        self.shapes: Counter[Shape] = Counter()
        self.calls: list[list[int]] = []
        self.per_step: Counter[int] = Counter()

    def add(self, step: int, shape: Shape, *, is_whole: bool) -> None:
        """Add a call in a step."""
        self.tokens = len(shape) >= 2 and is_whole
        self.shapes[shape] += 1
        self._add_rows(step, shape[0], shape[1] if self.tokens else -1)

    def add_unknown(self, step: int) -> None:
        """Add a call in a step with an unknown batch size."""
        self._add_rows(step, UNKNOWN_ROWS, -1)

    def _add_rows(self, step: int, rows: int, length: int) -> None:
        self.per_step[step] += 1
        last = self.calls[-1] if self.calls else None
        if last is not None and last[1] == step:
            return  # a step of several calls keeps the shape of the first
        if last is not None and last[2:] == [rows, length]:
            last[1] = step
        elif len(self.calls) < LONGEST:
            self.calls.append([step, step, rows, length])


class InputShapes:
    """Collects the input shapes of outermost modules that are called with a tensor. Keeps no tensor alive.

    Args:
        may_have_sequence_first: Returns whether the first dimension of an outermost module's input can be the sequence.
    """

    def __init__(self, may_have_sequence_first: Callable[[int], bool] = lambda _: False) -> None:
        self._may_have_sequence_first = may_have_sequence_first
        self._modules: dict[int, _Inputs] = {}

    def see(self, module_id: int, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call of an outermost module in a step."""
        known = self._modules.get(module_id)
        if (known is None and len(self._modules) >= MODULES) or is_tracing():  # while tracing, sizes are symbolic
            return
        with without_overrides():
            found = _telling((*args, *kwargs.values()), after_object=bool(args) and _is_object(args[0]))
        if found is None:
            return
        shape, is_whole, is_hidden = found
        is_sequence = len(shape) == (2 if is_whole else 3) and shape[0] != shape[1]
        if is_hidden or (is_sequence and self._may_have_sequence_first(module_id)):
            known = self._modules[module_id] = known or _Inputs()
            known.add_unknown(step)
        elif len(shape) > 1 or (shape and is_whole):  # one dimension of fractions can be the values of one sample
            known = self._modules[module_id] = known or _Inputs()
            known.add(step, shape, is_whole=is_whole)

    def drain(self, part: Part) -> None:
        """Write the shapes of the module that was called in most steps, the first of several."""
        if self._modules:
            module_id, found = max(self._modules.items(), key=lambda item: len(item[1].per_step))
            if not found.shapes:
                return
            shape, _ = found.shapes.most_common(1)[0]
            often, _ = Counter(found.per_step.values()).most_common(1)[0]
            about = {"module_id": module_id, "shape": list(shape), "tokens": found.tokens, "step_calls": often}
            part.facts["inputs"] = about
            part.facts["calls"] = found.calls


def _telling(arguments: tuple[Any, ...], *, after_object: bool) -> tuple[Shape, bool, bool] | None:
    """Return the sizes of the tensor that shows the batch; None without one.

    With it, whether the tensor is of whole numbers, and whether vmap hides one of its sizes.

    It is the first one. If that has one dimension of whole numbers, such as the positions of tokens, and others have
    several, such as the tokens, it is the first of these. If others have one dimension and another length, such as the
    offsets of an ``EmbeddingBag`` or of packed sequences, none of them shows the batch for certain.

    Images in a list, such as those of a detector of torchvision, are one sample each. Other tensors in a list can be
    samples or parts of a batch: if their first sizes differ, none of them shows the batch. Nor does a tensor after an
    object that can have the data itself, such as a graph.
    """
    tensor = next(tensors_in(arguments, LEVELS), None)
    if tensor is None:
        return None
    shape, is_whole = known_sizes(tensor), _is_whole(tensor)
    if after_object:
        return shape, is_whole, True
    listed = _listed(arguments, tensor)
    if _are_images(listed):
        return (len(listed), *shape), is_whole, is_batched(tensor)
    if len({sizes[:1] for sizes in listed}) > 1:
        return shape, is_whole, True
    if len(shape) == 1 and is_whole:
        others = [known_sizes(one) for one in tensors_in(arguments, LEVELS) if _is_whole(one)]
        several = next((sizes for sizes in others if len(sizes) > 1), None)
        if several is None and any(len(sizes) == 1 and sizes != shape for sizes in others):
            return None
        shape = several or shape
    return shape, is_whole, is_batched(tensor)


def _is_object(argument: object) -> bool:
    """Return whether an argument is neither a tensor, a plain value nor a container of them."""
    plain = issubclass(type(argument), (str, bytes, int, float, complex, Enum, nn.Module))
    has_own = type(argument).__module__ != "builtins" and bool(attributes_of(argument))
    return has_own and not plain and next(tensors_in(argument, LEVELS), None) is None


def _listed(arguments: tuple[Any, ...], first: Tensor) -> list[Shape]:
    """Return the sizes of the tensors in the list or tuple that has the given tensor; empty if it is in neither."""
    for argument in arguments:
        if issubclass(type(argument), (list, tuple)) and any(one is first for one in tensors_in(argument, 1)):
            return [known_sizes(one) for one in tensors_in(argument, 1)]
    return []


def _are_images(listed: list[Shape]) -> bool:
    """Return whether tensors have the channels of images, and no dimension of a batch before it."""
    return bool(listed) and all(len(sizes) == 3 and sizes[0] in CHANNELS for sizes in listed)


def _is_whole(tensor: Tensor) -> bool:
    return not (is_floating(tensor) or is_complex(tensor))
