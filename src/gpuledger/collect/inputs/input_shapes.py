"""Input shapes of the outermost modules. The shape of one tensor gives the samples and tokens of a step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    is_batched,
    is_complex,
    is_floating,
    is_later_part,
    known_sizes,
    requires_grad,
    tensors_in,
    without_overrides,
)
from gpuledger.collect.adapter.torch_entrances import is_tracing
from gpuledger.collect.inputs.batch_dimension import Shape, batch_dimension, relates_rows
from gpuledger.collect.inputs.loaders import batch_sizes_of
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

``torch.vmap`` hides a dimension: it can be the batch or another.
"""


class _Step:
    """Calls in one step.

    Attributes:
        calls: Number of calls.
        samples: Sum of their samples, by the dimension that is the batch.
        is_accumulated: Whether a backward pass follows each call but the last, and each call has another batch.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.samples = [0, 0]
        self.is_accumulated = True


class _Inputs:
    """Input shapes of one outermost module.

    Attributes:
        holds_tensors: Whether the module has weights or buffers.
        tokens: Whether the last input was of token ids.
        shapes: Number of calls by shape.
        outputs: Sizes of the tensors that were returned, by the shape of the input.
        calls: Rows of first step, last step, size of the first dimension, length, and size of the second dimension.
        steps: Calls by step.
        count: Number of calls.
        hides_batch: Whether a call was seen with a batch that the input does not show.
        relates_rows: Whether the rows of an input are related to each other, as the nodes of a graph are.
        is_part: Whether inputs are parts of one tensor that has the data of several calls.
    """

    def __init__(self, *, holds_tensors: bool) -> None:
        self.holds_tensors = holds_tensors
        self.count = 0
        self.tokens = self.hides_batch = self.relates_rows = self.is_part = False
        self.shapes: Counter[Shape] = Counter()
        self.outputs: dict[Shape, set[Shape]] = {}
        self.calls: list[list[int]] = []
        self.steps: dict[int, _Step] = defaultdict(_Step)
        self._last: tuple[int, Shape] = -1, ()
        """Id of the last input, and its shape."""

    def add(self, step: int, found: _Telling, *, after_backward: bool) -> None:
        """Add a call in a step. ``after_backward``: whether a backward pass has ended since the last one."""
        shape = found.shape
        self.tokens = len(shape) >= 2 and found.is_whole
        self.shapes[shape] += 1
        self.is_part = self.is_part or is_later_part(found.tensor)
        second = shape[1] if len(shape) > 1 else UNKNOWN_ROWS
        added = self._add_rows(step, shape[0], shape[1] if self.tokens else -1, second)
        added.samples = [added.samples[0] + shape[0], added.samples[1] + second]
        if added.calls > 1:  # of an iterator, the next batch exists before the last one is freed
            is_same = self._last[0] == id(found.tensor)
            added.is_accumulated &= after_backward and not is_same
        added.is_accumulated &= not requires_grad(found.tensor)  # a step of an attack, or of another model
        self._last = id(found.tensor), shape if shape == known_sizes(found.tensor) else ()

    def add_unknown(self, step: int, *, has_batch: bool) -> None:
        """Add a call in a step with an unknown batch size."""
        self.hides_batch = self.hides_batch or has_batch
        self._last = -1, ()
        self._add_rows(step, UNKNOWN_ROWS, -1, UNKNOWN_ROWS).is_accumulated = False

    def returned(self, result: object) -> None:
        """Add what the last call has returned."""
        _, shape = self._last
        if shape and (shape in self.outputs or len(self.outputs) < MODULES) and not is_tracing():
            found = self.outputs.setdefault(shape, set())
            found.update(sizes for one in tensors_in(result, LEVELS) if (sizes := known_sizes(one)))

    def _add_rows(self, step: int, rows: int, length: int, second: int) -> _Step:
        added = self.steps[step]
        added.calls += 1
        self.count += 1
        last = self.calls[-1] if self.calls else None
        if last is not None and last[1] == step:
            return added  # a step of several calls keeps the shape of the first
        if last is not None and last[2:] == [rows, length, second]:
            last[1] = step
        elif len(self.calls) < LONGEST:
            self.calls.append([step, step, rows, length, second])
        return added

    def calls_by(self, dim: int) -> list[list[int]]:
        """Return the rows of first step, last step, batch size and length, if a dimension is the batch."""
        rows: list[list[int]] = []
        for first, last, *sizes, second in self.calls:
            one = [second, -1] if dim else sizes
            if rows and rows[-1][2:] == one and rows[-1][1] + 1 == first:
                rows[-1][1] = last
            else:
                rows.append([first, last, *one])
        return rows


class InputShapes:
    """Collects the input shapes of outermost modules that are called with a tensor. Keeps no tensor alive.

    Args:
        may_have_sequence_first: Returns whether the first dimension of an outermost module's input can be the sequence.
        holds_tensors: Returns whether an outermost module has weights or buffers.
        is_part: Returns whether an outermost module was found to be a part of another one since.
    """

    def __init__(
        self,
        may_have_sequence_first: Callable[[int], bool] = lambda _: False,
        holds_tensors: Callable[[int], bool] = lambda _: True,
        is_part: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._may_have_sequence_first = may_have_sequence_first
        self._holds_tensors = holds_tensors
        self._is_part = is_part
        self._modules: dict[tuple[int, bool], _Inputs] = {}
        """Inputs by module, and whether its calls had gradients."""
        self.is_taken: Callable[[Tensor], bool] = lambda _: False
        """Returns whether an input was taken out of a tensor with the data of several calls."""
        self._batch_sizes: set[int] = set()
        self._after_backward = self._had_backward = False

    def see(self, module_id: int, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call of an outermost module in a step."""
        key = module_id, torch.is_grad_enabled()
        known = self._modules.get(key)
        if (known is None and not self._has_room()) or is_tracing():  # while tracing, sizes are symbolic
            return
        with without_overrides():
            arguments = (*args, *kwargs.values())
            found = _telling(arguments, after_object=bool(args) and _is_object(args[0]))
        if found is None:
            return
        shape = found.shape
        if found.is_hidden or len(shape) > 1 or (shape and found.is_whole):  # fractions can be the values of one sample
            if known is None:
                known = self._modules[key] = _Inputs(holds_tensors=self._holds_tensors(module_id))
            if found.is_hidden:
                known.add_unknown(step, has_batch=found.has_batch)
            else:
                with without_overrides():
                    known.add(step, found, after_backward=self._after_backward)
                    known.is_part = known.is_part or self.is_taken(found.tensor)
                    known.relates_rows = known.relates_rows or _relates_rows(arguments, found)
        if known is not None and known.holds_tensors and torch.is_grad_enabled():
            self._after_backward = False

    def withdraw(self, module_id: int) -> None:
        """Forget the inputs of a module: they are those of many steps."""
        for key in [one for one in list(self._modules) if one[0] == module_id]:
            self._modules.pop(key, None)

    def _has_room(self) -> bool:
        """Return whether another module can be added. Parts of modules, such as the layers of one, give way to it.

        A model that calls its layers one by one when it is made shows them as outermost modules first.
        """
        if len(self._modules) >= MODULES:
            for key in [one for one in list(self._modules) if self._is_part(one[0])]:
                self._modules.pop(key, None)
        return len(self._modules) < MODULES

    def returned(self, module_id: int, result: object) -> None:
        """Record what a call of an outermost module has returned."""
        known = self._modules.get((module_id, torch.is_grad_enabled()))
        if known is not None and result is not None:
            with without_overrides():
                known.returned(result)

    def backward_ended(self) -> None:
        """Record the end of a backward pass."""
        self._after_backward = self._had_backward = True

    def see_loaders(self, loaders: Iterable[object]) -> None:
        """Record the batch sizes of DataLoaders."""
        self._batch_sizes |= batch_sizes_of(loaders)

    def drain(self, part: Part) -> None:
        """Write the shapes of the module that was called in most steps, of several that with most calls.

        In a training, only calls with gradients count, if there are any: others are evaluations, targets or teachers.
        Another thread can call modules meanwhile, so what is looked through is copied first.
        """
        modules = self._modules.copy()
        if self._had_backward and any(has_graph for _, has_graph in modules):
            modules = {key: one for key, one in modules.items() if key[1]}
        if not modules:
            part.facts["has_batch"] = bool(self._batch_sizes)
            return
        (module_id, _), found = max(modules.items(), key=lambda item: (len(item[1].steps), item[1].count))
        shape, _ = found.shapes.copy().most_common(1)[0] if found.shapes else ((), 0)
        dim = self._dimension_of(module_id, found, shape) if shape else None
        is_known = dim is not None and not found.relates_rows
        is_sequence_first = bool(shape) and dim is None and self._may_have_sequence_first(module_id)
        part.facts["has_batch"] = is_known or found.hides_batch or is_sequence_first or bool(self._batch_sizes)
        if dim is None or found.relates_rows:
            part.facts.update(inputs=None, calls=[])
            return
        steps = list(found.steps.values())
        often, _ = Counter(one.calls for one in steps).most_common(1)[0]
        about = {"module_id": module_id, "shape": list(shape), "tokens": found.tokens and not dim, "step_calls": often}
        is_only_model = [one for one in modules.values() if one.holds_tensors] == [found]
        samples = _accumulated(steps, often, dim) if is_only_model else None
        about |= {"batch_dim": dim, "step_samples": samples, "is_part": found.is_part}
        part.facts["inputs"] = about
        part.facts["calls"] = found.calls_by(dim)

    def _dimension_of(self, module_id: int, found: _Inputs, shape: Shape) -> int | None:
        return batch_dimension(
            shape,
            frozenset(found.outputs.get(shape, ())),
            is_whole=found.tokens,
            may_be_second=self._may_have_sequence_first(module_id),
            batch_sizes=self._batch_sizes.copy(),
        )


def _accumulated(steps: Sequence[_Step], calls: int, dim: int) -> int | None:
    """Return the samples of most steps, if each adds the gradients of several batches; None if they do not."""
    alike = [one for one in steps if one.calls == calls]
    if calls == 1 or not all(one.is_accumulated for one in alike):
        return None
    samples, count = Counter(one.samples[dim] for one in alike).most_common(1)[0]
    return samples if 2 * count > len(alike) else None


@dataclass(frozen=True)
class _Telling:
    """The tensor among a call's arguments that shows the batch.

    ``is_whole`` is whether it has whole numbers. ``is_hidden`` is whether it does not show the batch after all, and
    ``has_batch`` whether there is one.
    """

    tensor: Tensor
    shape: Shape
    is_whole: bool
    is_hidden: bool
    has_batch: bool = True


def _telling(arguments: tuple[Any, ...], *, after_object: bool) -> _Telling | None:
    """Return the tensor that shows the batch; None without one.

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
        return _Telling(tensor, shape, is_whole, is_hidden=True, has_batch=False)
    listed = _listed(arguments, tensor)
    if _are_images(listed):
        return _Telling(tensor, (len(listed), *shape), is_whole, is_hidden=is_batched(tensor))
    if len({sizes[:1] for sizes in listed}) > 1:
        return _Telling(tensor, shape, is_whole, is_hidden=True)
    if len(shape) == 1 and is_whole:
        others = [one for one in tensors_in(arguments, LEVELS) if _is_whole(one)]
        several = next((one for one in others if len(known_sizes(one)) > 1), None)
        if several is None and any(len(sizes) == 1 and sizes != shape for sizes in map(known_sizes, others)):
            return None
        tensor = tensor if several is None else several
    return _Telling(tensor, known_sizes(tensor), is_whole, is_hidden=is_batched(tensor))


def _relates_rows(arguments: tuple[Any, ...], found: _Telling) -> bool:
    """Return whether other tensors of a call relate the rows of its input to each other."""
    others = [one for one in tensors_in(arguments, LEVELS) if one is not found.tensor]
    whole = [known_sizes(one) for one in others if _is_whole(one)]
    return not found.is_whole and relates_rows(found.shape, [known_sizes(one) for one in others], whole)


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
