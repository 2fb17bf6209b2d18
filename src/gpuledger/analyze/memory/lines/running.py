"""Which module runs when a block is allocated: it can belong to another one, as its weight or its input.

A block of a layer that is not running, such as a weight that an update replaces inside of another module's call, has
that layer as its module. What runs is known from the blocks that belong to nothing else, such as temporaries: those
that the same call of a module has allocated have the same Python stack, from that call on.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.lifetimes import I64, read_labels, read_numbers
from gpuledger.analyze.memory.lines.source_lines import Frame, line_text, own_frame, program_directory, read_stacks
from gpuledger.model.accounts import LASTING_CATEGORIES

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

_CALL = "_call_impl"
"""PyTorch's function that every call of a module goes through."""
_OF_OTHERS = (*LASTING_CATEGORIES, "gradient", "input")
"""Categories of blocks with the module that they belong to, whichever has allocated them."""
_IN_CALLS = ("forward", "evaluation")


class RunningModules:
    """Finds the module that runs at the allocation of a block.

    Args:
        rank: One process of a run.
        device_idx: The device of the block.
    """

    def __init__(self, rank: Rank, device_idx: int) -> None:
        self._rank, self._device = rank, device_idx

    def at(self, block: int) -> tuple[int, str]:
        """Return the id of the module, -1 for none; and the line that runs, if the block is of another module.

        Args:
            block: Its position among the blocks of the device.
        """
        own = int(self._modules[block])
        codes, labels = self._categories
        is_of_other = codes[block] >= 0 and labels[codes[block]] in _OF_OTHERS
        if own < 0 or not is_of_other:
            return own, ""
        stack = int(self._stacks[block])
        if stack < 0 or not self._in_calls[block]:
            return own, ""
        call = self._calls.get(stack, ())
        witnesses = np.flatnonzero(self._is_witness & np.isin(self._stacks, self._by_call.get(call, ())))
        if not witnesses.size or (self._modules[witnesses] == own).any():
            return own, ""
        born = read_numbers(self._rank, "blocks", "alloc_index", self._device)
        nearest = witnesses[np.argmin(np.abs(born[witnesses] - born[block]))]
        frame = own_frame(self._frames[stack])
        line = "" if frame is None else line_text(frame, program_directory(self._frames.values()))
        return int(self._modules[nearest]), line

    @cached_property
    def _modules(self) -> I64:
        return read_numbers(self._rank, "blocks", "module_id", self._device)

    @cached_property
    def _stacks(self) -> I64:
        return read_numbers(self._rank, "blocks", "stack_id", self._device)

    @cached_property
    def _categories(self) -> tuple[I64, tuple[str, ...]]:
        return read_labels(self._rank, "blocks", "category", self._device)

    def _in_phases(self, phases: tuple[str, ...]) -> NDArray[np.bool_]:
        codes, labels = read_labels(self._rank, "blocks", "phase", self._device)
        return np.isin(codes, [number for number, word in enumerate(labels) if word in phases])

    @cached_property
    def _in_calls(self) -> NDArray[np.bool_]:
        return self._in_phases(_IN_CALLS)

    @cached_property
    def _is_witness(self) -> NDArray[np.bool_]:
        codes, labels = self._categories
        others = [number for number, word in enumerate(labels) if word in _OF_OTHERS]
        is_own = (codes >= 0) & ~np.isin(codes, others) & (self._stacks >= 0)
        return is_own & self._in_phases((*_IN_CALLS, "setup", "between"))

    @cached_property
    def _frames(self) -> dict[int, tuple[Frame, ...]]:
        return {number: tuple(stack) for number, stack in read_stacks(self._rank).items()}

    @cached_property
    def _calls(self) -> dict[int, tuple[Frame, ...]]:
        """Return the frames of each stack from the innermost call of a module on; none for one outside of modules."""
        found = {}
        for number, stack in self._frames.items():
            inner = next((at for at, one in enumerate(stack) if one.framework and one.function == _CALL), len(stack))
            found[number] = stack[inner:]
        return found

    @cached_property
    def _by_call(self) -> dict[tuple[Frame, ...], list[int]]:
        found: dict[tuple[Frame, ...], list[int]] = {}
        for number, call in self._calls.items():
            found.setdefault(call, []).append(number)
        return found
