"""Decide which calls of outermost modules are steps, in a program without an optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torch import nn

from gpuledger.collect.adapter.frames import locals_of, program_frames
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.outermost_modules import have_gradients

SWITCH_CALLS = 8
"""Number of calls of another module, without one of the followed module, after which the other one is followed."""

HELD_CALLS = 16
"""Maximum number of calls that are held back because a training can follow."""


class ConstructorCalls:
    """Calls in the constructor of a module, which calls a part of itself to find out the size of its output.

    They are no steps, up to SWITCH_CALLS of them: a constructor can also do all the work of a program.
    """

    def __init__(self) -> None:
        self._left = SWITCH_CALLS
        self._under_way = -1

    def begins(self, module_id: int) -> bool:
        """Record the start of a call. Return whether it is one of these."""
        if self._left and _is_constructing():
            self._left -= 1
            self._under_way = module_id
            return True
        return False

    def ends(self, module_id: int) -> bool:
        """Record the end of a call. Return whether it is one of these."""
        is_one, self._under_way = module_id == self._under_way, -1
        return is_one


def _is_constructing() -> bool:
    """Return whether the constructor of a module runs."""
    for frame in program_frames():
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            made = locals_of(frame).get(code.co_varnames[0])
            if issubclass(type(made), nn.Module):
                return True
    return False


class FollowedModule:
    """The outermost module with the calls that are steps: the first one that is called.

    Another one replaces it if it contains it, as a model contains a part that was called alone before. So does one that
    is called SWITCH_CALLS times since the last call of the followed module, as the denoiser of a pipeline is after the
    text encoder. So does any other one if the followed module was freed, as by a program that evaluates several models.
    Before a step was counted, a module with more weights does so with its first call: the calls of a draft model are
    parts of an iteration that ends with the call of the target model.

    Args:
        registry: Knows the modules; None if nothing replaces a module but the number of calls.
    """

    def __init__(self, registry: ModuleRegistry | None = None) -> None:
        self.module_id = -1
        self._others: Counter[int] = Counter()
        self._registry = registry

    def begins(self, module_id: int) -> bool:
        """Record the start of a call. Return whether its module is followed."""
        if module_id != self.module_id and self._replaces(module_id):
            self.module_id = module_id
        if module_id == self.module_id:
            self._others.clear()
        return module_id == self.module_id

    def _replaces(self, module_id: int) -> bool:
        followed = self.module_id
        if followed < 0 or self._contains(module_id, followed):
            return True
        if self._registry is not None and self._registry.gives_way(followed):
            return True
        self._others[module_id] += 1
        return self._others[module_id] > SWITCH_CALLS

    def _contains(self, module_id: int, other_id: int) -> bool:
        return self._registry is not None and self._registry.container_of(other_id) == module_id

    def has_gradients(self) -> bool:
        """Return whether a parameter of a module has a gradient."""
        return self._registry is not None and have_gradients(self._registry.live_modules())

    def gives_way_to_larger(self, module_id: int) -> bool:
        """Follow a module if it has more weights. Return whether the one followed before has given way."""
        registry, followed = self._registry, self.module_id
        if registry is None or followed in (-1, module_id) or self._contains(module_id, followed):
            return False
        if not registry.is_in(module_id, registry.larger_than(followed)):
            return False
        self.module_id = module_id
        self._others.clear()
        return True

    def awaits_larger(self) -> bool:
        """Return whether a module with more weights than the followed one was not called yet."""
        registry, followed = self._registry, self.module_id
        if registry is None or followed < 0:
            return False
        around = {registry.container_of(followed)}
        return not registry.larger_than(followed) - around <= registry.called_roots


class HeldCalls:
    """Calls that look like steps, while a module that can be trained was not called yet.

    A program that computes something with a helper before its training has no steps there. A program that only calls
    modules has.

    Args:
        awaits_training: Returns whether a module in training mode with trainable parameters was not called yet.
        counted: Called with number, start and end of a call that turns out to be a step, outside the usual end of one.
    """

    def __init__(self, awaits_training: Callable[[], bool], counted: Callable[[int, int, int], None]) -> None:
        self.counted = counted
        self._awaits_training = awaits_training
        self._times_ns: list[tuple[int, int]] = []

    def holds(self, awaits_larger: Callable[[], bool] = lambda: False, *, fills: bool = False) -> bool:
        """Return whether a call that ends now is held back.

        Args:
            awaits_larger: Returns whether a larger model was not called yet; asked up to SWITCH_CALLS times.
            fills: Whether the call has given weights their values, as those of a lazy module get in its first call.
        """
        count = len(self._times_ns)
        if count < SWITCH_CALLS and (fills or awaits_larger()):
            return True
        return count < HELD_CALLS and self._awaits_training()

    def add(self, start_ns: int, end_ns: int) -> None:
        """Hold back a call."""
        self._times_ns.append((start_ns, end_ns))

    def release(self) -> list[tuple[int, int]]:
        """Return the start and end of the calls that were held back, and forget them."""
        held, self._times_ns = self._times_ns, []
        return held
