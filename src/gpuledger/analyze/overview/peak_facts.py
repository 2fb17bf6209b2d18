"""The blocks of one device at the peak, and what a replay without some of them saves."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.instant import find_peak, module_classes, module_paths
from gpuledger.analyze.memory.lifetimes import I64, allocated_curve, read_labels, read_lives, read_numbers, running_sum
from gpuledger.analyze.memory.lines.source_lines import WITHOUT_LINE, coded_lines, read_stacks
from gpuledger.analyze.memory.small_states import LARGE_BYTES, LEAST_ELEMENTS, SMALL_BYTES, number_bytes
from gpuledger.units import format_frac

if TYPE_CHECKING:
    from gpuledger.analyze.memory.lines.source_lines import Stack
    from gpuledger.model.run import Rank

Mask = NDArray[np.bool_]
_OPTIMIZERS = "/torch/optim/"
_SHARDED = ("FSDP", "FullyShardedDataParallel", "DeepSpeedEngine")


class PeakFacts:
    """One device's blocks, with the properties that the rules of findings use."""

    def __init__(self, rank: Rank, device_idx: int) -> None:
        self.rank, self.device_idx = rank, device_idx
        self.lives = read_lives(rank, device_idx)
        self.curve = allocated_curve(self.lives)
        self.peak = find_peak(rank, device_idx)
        self.peak_bytes = self.curve.at(self.peak.index)
        self.at_peak = self.lives.allocated_at(self.peak.index)
        self.module_id = read_numbers(rank, "blocks", "module_id", device_idx)

    def of(self, *categories: str) -> Mask:
        """Return which blocks are of one of these categories."""
        codes, words = self._categories
        found: Mask = np.array([*(word in categories for word in words), False])[codes]  # the last one is that of -1
        return found

    @cached_property
    def _categories(self) -> tuple[I64, tuple[str, ...]]:
        return read_labels(self.rank, "blocks", "category", self.device_idx)

    @cached_property
    def paths(self) -> dict[int, str]:
        """Return ``module_id -> path``."""
        return module_paths(self.rank)

    @cached_property
    def classes(self) -> dict[str, str]:
        """Return the class of every module, by its path."""
        return module_classes(self.rank)

    @cached_property
    def is_trained(self) -> bool:
        """Return whether a backward pass was recorded. Only then are a forward's activations kept for one."""
        codes, words = read_labels(self.rank, "spans", "phase", self.device_idx)
        return bool("backward" in words and (codes == words.index("backward")).any())

    @cached_property
    def uses_modules(self) -> bool:
        """Return whether any block is attributed to a module."""
        return bool((self.module_id >= 0).any())

    @cached_property
    def is_sharded(self) -> bool:
        """Return whether the model is sharded over the ranks already: some wrappers show it in their classes."""
        shards = self._most_held("sharded_weight", "sharded_optimizer_state")
        return shards > 0 or any(name.startswith(_SHARDED) for name in self.classes.values())

    @cached_property
    def has_small_state(self) -> bool:
        """Return whether the optimizer has few bytes for each number that it trains, such as two in 8-bit Adam.

        The numbers are counted by their gradients, and by the weights if no gradient was recorded.
        """
        trained_bytes = self._most_held("gradient", "sharded_gradient") or self._most_held("weight", "sharded_weight")
        return self._state_bytes <= SMALL_BYTES * trained_bytes / self._number_bytes

    @property
    def is_large_state(self) -> Mask:
        """Return which blocks, if they are states of an optimizer, are large enough for 8-bit states."""
        found: Mask = self.lives.allocated_bytes >= LEAST_ELEMENTS * self._number_bytes
        return found

    @cached_property
    def has_large_state(self) -> bool:
        """Return whether the optimizer keeps many bytes for each weight, such as L-BFGS and its history."""
        gradients = ("gradient", "sharded_gradient")
        weight_bytes = self._most_held("weight", "sharded_weight") or self._most_held(*gradients)
        return self._state_bytes > LARGE_BYTES * weight_bytes / self._number_bytes

    @property
    def _state_bytes(self) -> int:
        return self._most_held("optimizer_state", "sharded_optimizer_state")

    @property
    def _number_bytes(self) -> int:
        return number_bytes(self.rank.manifest)

    def _most_held(self, *categories: str) -> int:
        """Return the highest bytes of some categories at one time after the setup."""
        blocks, lives = self.of(*categories) & self.outlasts_setup, self.lives
        held = running_sum(lives.allocated_bytes[blocks], lives.alloc_index[blocks], lives.free_requested_index[blocks])
        return int(held.bytes.max(initial=0))

    @cached_property
    def parts(self) -> dict[int, int]:
        """Return ``module_id ->`` number of parts of its parameters on the ranks, the fewest where they differ."""
        table = self.rank.table("shards", ("module_id", "parts"))
        found: dict[int, int] = {}
        for module_id, parts in zip(table["module_id"].to_pylist(), table["parts"].to_pylist(), strict=True):
            if module_id is not None:
                found[module_id] = min(parts, found.get(module_id, parts))
        return found

    @cached_property
    def outlasts_setup(self) -> Mask:
        """Return which blocks were not freed in the setup, which can replace weights, as a conversion to 16 bits."""
        born = self.lives.alloc_index
        later = born[~self.born_in("setup") & (born >= 0)]
        found: Mask = self.lives.free_requested_index > (later.min() if later.size else -1)
        return found

    def born_in(self, phase: str) -> Mask:
        """Return which blocks were allocated in this phase."""
        codes, words = self._phases
        found: Mask = codes == words.index(phase) if phase in words else np.zeros(codes.size, dtype=bool)
        return found

    @cached_property
    def _phases(self) -> tuple[I64, tuple[str, ...]]:
        return read_labels(self.rank, "blocks", "phase", self.device_idx)

    @cached_property
    def of_update(self) -> Mask:
        """Return which blocks the update of an optimizer of torch allocated, and no closure that ``step`` calls.

        Blocks without a stack count as those of the update.
        """
        in_step = self.born_in("optimizer")
        others = [number for number, stack in read_stacks(self.rank).items() if not _is_update(stack)]
        found: Mask = in_step & ~np.isin(self.stack_id, others)
        return found

    def of_updates(self, step_modules: frozenset[str] | None) -> Mask:
        """Return which blocks the updates of some optimizers allocated; None for those of all.

        Blocks without a stack count as theirs.

        Args:
            step_modules: Modules of torch in which the optimizers' ``step`` is written.
        """
        if step_modules is None:
            return self.of_update
        others = np.setdiff1d(list(read_stacks(self.rank)), self._stacks_in(step_modules))
        found: Mask = self.of_update & ~np.isin(self.stack_id, others)
        return found

    def allocated_in(self, modules: frozenset[str]) -> Mask:
        """Return which blocks code of these modules of torch allocated. Those without a stack are not among them."""
        found: Mask = np.isin(self.stack_id, self._stacks_in(modules))
        return found

    def _stacks_in(self, modules: frozenset[str]) -> list[int]:
        files = tuple(f"/{name.replace('.', '/')}.py" for name in modules)
        stacks = read_stacks(self.rank).items()
        return [number for number, stack in stacks if any(one.file.endswith(files) for one in stack)]

    @cached_property
    def stack_id(self) -> I64:
        """Return the id of each block's Python stack, -1 without one."""
        return read_numbers(self.rank, "blocks", "stack_id", self.device_idx)

    def held(self, blocks: Mask) -> int:
        """Return the bytes of these blocks at the peak."""
        return int(self.lives.allocated_bytes[blocks & self.at_peak].sum())

    def line_of(self, blocks: Mask) -> str:
        """Return the source line that allocates most of these blocks' bytes at the peak; "" if it is not known."""
        return self.line_at_any_time(blocks & self.at_peak)

    def line_at_any_time(self, found: Mask) -> str:
        """Return the source line that allocates most of these blocks' bytes; "" if it is not known."""
        codes, texts = self._lines
        sizes = np.bincount(codes[found], weights=self.lives.allocated_bytes[found], minlength=len(texts))
        line = texts[int(sizes.argmax())] if found.any() else ""
        return "" if line in WITHOUT_LINE else line

    def is_on(self, line: str) -> Mask:
        """Return which blocks a source line allocates."""
        codes, texts = self._lines
        found: Mask = codes == texts.index(line)
        return found

    @cached_property
    def _lines(self) -> tuple[I64, list[str]]:
        return coded_lines(self.rank, self.device_idx)

    def saving(self, blocks: Mask, fraction: float = 1.0, during: Mask | None = None) -> int:
        """Return by how much the peak falls without ``fraction`` of these blocks' bytes (only at events ``during``)."""
        lives = self.lives
        is_away = during is None or during[np.searchsorted(self.curve.index, self.peak.index)]
        if not is_away or not self.held(blocks):
            return 0
        part = running_sum(lives.allocated_bytes[blocks], lives.alloc_index[blocks], lives.free_requested_index[blocks])
        place = np.searchsorted(part.index, self.curve.index, side="right") - 1
        away = np.where(place >= 0, part.bytes[np.maximum(place, 0)], 0) * fraction
        left = self.curve.bytes - (away if during is None else np.where(during, away, 0))
        return max(0, self.peak_bytes - int(left.max()))

    def share(self, size: float) -> str:
        """Return a size as a fraction of the peak, as text."""
        return format_frac(size / self.peak_bytes if self.peak_bytes else 0.0, 0)

    def show(self, *words: str) -> tuple[str, ...]:
        """Return the arguments of the ``show`` command for this rank and device."""
        place = () if self.rank.number == 0 else ("--rank", str(self.rank.number))
        return ("show", "RUN", *words, *place)


def _is_update(stack: Stack) -> bool:
    """Return whether the innermost frame of torch.optim is inside that of the program."""
    for frame in stack:
        if _OPTIMIZERS in frame.file:
            return True
        if not frame.framework:
            return False
    return False
