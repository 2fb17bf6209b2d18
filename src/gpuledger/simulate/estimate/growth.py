"""Memory that grows with every step of a program, such as a replay buffer that fills, and what keeps it."""

from __future__ import annotations

import gc
import itertools
from collections import deque
from dataclasses import dataclass, replace
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from gpuledger.collect.adapter.program_objects import without_overrides
from gpuledger.collect.flight.element_sizes import last_elements
from gpuledger.collect.flight.graphs import keeps_graph
from gpuledger.collect.flight.holders import Key, Named, named_objects
from gpuledger.collect.flight.time_limit import TimeLimit
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.rest.longer import LongerLoops
from gpuledger.units import counted, format_bytes

_SUSPICIOUS, _CERTAIN = 2, 4
"""Steps in a row with more allocated after each than before, until it may be growth, and until it is."""
_UNEVEN, _CERTAIN_IF_UNEVEN = 2.0, 8
"""Ratio of the largest to the smallest gain of these steps above which chance is likely: batches of varied sizes.

Then as many steps in a row must gain.
"""
_STEADY = 1.1
"""Ratio of the largest to the smallest gain of the steps up to which the other steps are taken to gain as much."""
_MANY_STEPS, _NOTABLE = 1000, 1.01
"""Growth is reported if that many more steps need more than this ratio of the peak."""
_LOOK_NS = 500_000_000
"""Longest search for what the program keeps."""
_SAMPLE, _MOST_OBJECTS = 4, 256
"""Elements of a container that are looked into, and objects of one element."""
_EXPLAINED = 0.25
"""Smallest part of the growth that a container has to explain to be named."""
_BLOCKS_KEPT = 4
"""Steps after which a block is still there if it is kept, and one more."""
_NOT_FOLLOWED = (type, ModuleType, FrameType, FunctionType)


@dataclass(frozen=True)
class GrowingContainer:
    """A container of the program that grows. ``bound`` is the largest number of elements; None without a limit."""

    name: str
    where: str
    length: int
    bound: int | None
    more_per_step: float
    keeps_graphs: bool = False
    """Whether its elements are tensors that keep their autograd graphs."""
    element_bytes: int = 0
    """What an element keeps; 0 if that is not known."""
    used_bytes: int = 0
    """The part of it that is values of its tensors."""


@dataclass(frozen=True)
class StepGrowth:
    """What each of the last steps added to the requested bytes, and the container that keeps it; None if unknown."""

    step: int
    bytes_per_step: int
    holder: GrowingContainer | None
    kept_blocks: tuple[tuple[int, int], ...] = ()
    """Address and bytes of what one of the last steps has kept; empty if the steps have kept different amounts."""
    loop: str = ""
    """The loop of which the steps are the iterations; "" if they are steps of the program."""

    @property
    def steps_left(self) -> int | None:
        """Return the number of steps until the container is full; None if it has no limit, or is not known."""
        if self.holder is None or self.holder.bound is None:
            return None
        return max(int((self.holder.bound - self.holder.length) / self.holder.more_per_step), 0)

    @property
    def kept_in(self) -> tuple[str, ...]:
        """Return the names of the container: ``buffer`` of ``agent.buffer``, ``seen`` and ``a`` of ``seen['a']``."""
        if self.holder is None:
            return ()
        name, _, key = self.holder.name.partition("[")
        return name.rpartition(".")[2], key.rpartition("[")[2].strip("'\"]")

    @property
    def kept_by(self) -> str:
        """Return the name of the class of which the container is an attribute; "" if it is none."""
        _, _, owner = ("" if self.holder is None else self.holder.where).partition("attribute of ")
        return owner.rpartition(".")[2]

    @property
    def left_bytes(self) -> int:
        """Return how much is still to come until the container is full; 0 if that is not known."""
        return (self.steps_left or 0) * self.bytes_per_step


class GrowthWatch:
    """Finds out whether each step leaves more allocated than the one before. Batches of other sizes leave less, too.

    Args:
        device: The GPU.
        loop: The place of a loop of which the iterations are looked at; "" for the steps of the program.
    """

    def __init__(self, device: SimulatedDevice, loop: str = "") -> None:
        self._device = device
        self._loop = loop
        self._held: deque[int] = deque(maxlen=_CERTAIN_IF_UNEVEN + 1)
        self._first_step = self._first_bytes = 0
        self._sizes: dict[Key, int] = {}
        """Sizes of the program's containers after that step."""
        self._blocks: deque[dict[int, tuple[int, object]]] = deque(maxlen=_BLOCKS_KEPT)
        """What was on the GPU after the last steps that have each left more."""

    def see(self, step: int) -> None:
        """Note what is allocated after a step. Must be called where the program's frames are those that run.

        Requested bytes are read: allocated bytes also depend on how the allocator splits blocks.
        """
        if self._device.decodes:
            self._held.clear()
            return
        self._held.append(self._device.counters.requested_bytes)
        if self._grew(1):
            self._blocks.append(self._device.live_blocks())
        else:
            self._first_step = 0
            self._blocks.clear()
        if not self._first_step and self._grew(_SUSPICIOUS):
            self._first_step, self._first_bytes = step, self._held[-1]
            self._sizes = {key: one.size for key, one in _kept().items()}

    @property
    def is_certain(self) -> bool:
        """Return whether each of the last steps has left more than the one before."""
        added = self._added(_CERTAIN)
        is_even = self._grew(_CERTAIN) and max(added) <= _UNEVEN * min(added)
        return is_even or self._grew(_CERTAIN_IF_UNEVEN)

    @property
    def needs_more(self) -> bool:
        """Return whether more steps are needed to know if the program grows."""
        return self._grew(_SUSPICIOUS) and not self.is_certain and len(self._held) <= _CERTAIN_IF_UNEVEN

    def found(self, step: int) -> StepGrowth | None:
        """Return the growth, at the end of a step; None if one of the last steps has not left more than before."""
        if not self._first_step or not self.is_certain:
            return None
        added = sorted(self._added(_CERTAIN))
        each_bytes, holder = added[len(added) // 2], self._holder(step - self._first_step)
        gains = self._added(_CERTAIN_IF_UNEVEN)
        is_steady = min(gains) > 0 and max(gains) <= _STEADY * min(gains)
        return StepGrowth(step, each_bytes, holder, self._kept_blocks(each_bytes) if is_steady else (), self._loop)

    def _kept_blocks(self, each_bytes: int) -> tuple[tuple[int, int], ...]:
        """Return the blocks that a step has kept, as long as is known: those are of that step that are still there.

        If they are not all, there is one with the address of such a block, and the bytes that a step keeps.
        """
        if len(self._blocks) < _BLOCKS_KEPT:
            return ()
        before, after, *_, now = self._blocks
        kept = [
            (address, size_bytes)
            for address, (size_bytes, made) in after.items()
            if _made_at(before, address) is not made and _made_at(now, address) is made
        ]
        total_bytes = sum(size for _, size in kept)
        if kept and abs(total_bytes - each_bytes) > (_STEADY - 1) * each_bytes:
            return ((kept[0][0], each_bytes),)
        return tuple(kept)

    def _holder(self, steps: int) -> GrowingContainer | None:
        """Return the container that has gained most bytes; None if there is none that explains the growth.

        If no container has gained as much, it is the only one with new tensors that keep their autograd graphs.
        """
        best, most_bytes = None, int(_EXPLAINED * (self._held[-1] - self._first_bytes))
        with_graphs: list[GrowingContainer] = []
        for key, one in _kept().items():
            more = one.size - self._sizes.get(key, one.size)
            if more > 0 and one.kind not in ("graph", "data"):
                each_bytes, used_bytes = self._bytes_per_element(one)
                if more * each_bytes > most_bytes:
                    most_bytes = more * each_bytes
                    known = GrowingContainer(one.name, one.where, one.size, one.bound, more / steps)
                    best = replace(known, element_bytes=each_bytes, used_bytes=used_bytes)
                if any(torch.is_tensor(kept) and keeps_graph(kept) for kept in last_elements(one.value, _SAMPLE)):
                    with_graphs.append(GrowingContainer(one.name, one.where, one.size, one.bound, more / steps, True))
        return best or (with_graphs[0] if len(with_graphs) == 1 else None)

    def _bytes_per_element(self, one: Named) -> tuple[int, int]:
        """Return the bytes that one element keeps, and those that are values of its tensors."""
        last = last_elements(one.value, _SAMPLE)
        storages: dict[int, tuple[int, int]] = {}
        for element in last:
            storages |= self._storages_below(element)
        count = max(len(last), 1)
        return sum(size for size, _ in storages.values()) // count, sum(used for _, used in storages.values()) // count

    def _storages_below(self, top: object) -> dict[int, tuple[int, int]]:
        """Return the bytes of the GPU tensors that an object keeps, and of their values, by storage."""
        found: dict[int, tuple[int, int]] = {}
        waiting: deque[Any] = deque([top])
        seen: set[int] = set()
        while waiting and len(seen) < _MOST_OBJECTS:
            value = waiting.popleft()
            if id(value) in seen or isinstance(value, _NOT_FOLLOWED):
                continue
            seen.add(id(value))
            if not isinstance(value, torch.Tensor):
                waiting.extend(gc.get_referents(value))
            elif self._device.holds(value):
                address, size_bytes = self._device.address(value), value.untyped_storage().nbytes()
                used_bytes = value.numel() * value.element_size() + found.get(address, (0, 0))[1]
                found[address] = size_bytes, min(used_bytes, size_bytes)
        return found

    def _grew(self, steps: int) -> bool:
        added = self._added(steps)
        return len(added) == steps and min(added) > 0

    def _added(self, most: int) -> list[int]:
        """Return by how much the last steps changed the requested bytes."""
        return [after - before for before, after in itertools.pairwise(self._held)][-most:]


def _made_at(blocks: dict[int, tuple[int, object]], address: int) -> object:
    """Return what identifies the storage at an address, which can be that of another one later; None without one."""
    return blocks.get(address, (0, None))[1]


def _kept() -> dict[Key, Named]:
    with without_overrides():
        return named_objects(TimeLimit(_LOOK_NS))[0]


def still_to_come_bytes(growth: StepGrowth | None, longer: LongerLoops | None) -> int:
    """Return what the upper bound includes: growth of later steps that is not in the estimate, as far as it is known.

    Args:
        growth: That of the last steps; None if there was none.
        longer: Which of the later steps are in the estimate.
    """
    if growth is None or (longer is not None and longer.has_all):
        return 0
    left, added = (None, 0) if longer is None else (longer.steps_left, longer.steps)
    known = [steps for steps in (growth.steps_left, left) if steps is not None]
    return max(min(known) - added, 0) * growth.bytes_per_step if known else 0


def is_endless(growth: StepGrowth | None, longer: LongerLoops | None) -> bool:
    """Return whether memory grows for an unknown number of steps."""
    has_end = longer is not None and (longer.has_all or longer.steps_left is not None)
    return growth is not None and growth.steps_left is None and not has_end


def is_little(device: SimulatedDevice, growth: StepGrowth) -> bool:
    """Return whether the growth of many steps changes the peak by very little."""
    peak_bytes = device.counters.peak_reserved_bytes
    more_bytes = max(_MANY_STEPS * growth.bytes_per_step, growth.left_bytes)
    return peak_bytes + more_bytes < peak_bytes * _NOTABLE


def describe_growth(device: SimulatedDevice, growth: StepGrowth, longer: LongerLoops | None = None) -> list[str]:
    """Return a sentence on memory that still grew at the last simulated step, unless it is little."""
    if is_little(device, growth):
        return []
    peak_bytes, holder, each_bytes = device.counters.peak_reserved_bytes, growth.holder, growth.bytes_per_step
    step = "iteration" if growth.loop else "step"
    said = f"{_described(growth)}: each {step} keeps {format_bytes(each_bytes)} more{_kept_in(holder)}."
    if longer is not None and longer.steps and longer.has_all:
        follows = f"The memory of {counted(longer.steps, f'more {step}')} follows from this growth."
        fitting = longer.steps - max(-((device.room_bytes - device.counters.peak_allocated_bytes) // each_bytes), 0)
        return [f"{said} {follows}" + (f" About {max(fitting, 0):,} of them fit." if fitting < longer.steps else "")]
    more_bytes = still_to_come_bytes(growth, longer)
    more_steps, more = counted(more_bytes // each_bytes, f"more {step}"), format_bytes(more_bytes)
    if holder is not None and holder.bound is not None:
        full = "It will be full after about" if more_bytes == growth.left_bytes else "The loop has"
        return [
            f"{said} It has {holder.length:,} of at most {holder.bound:,} elements. {full} {more_steps}, with {more} "
            "more. The upper bound includes them."
        ]
    first = f"The estimate is of the first {growth.step} {step}s."
    if more_bytes:
        return [f"{said} {first} The loops have {more_steps}, with {more} more. The upper bound includes them."]
    left_bytes = max(device.card.usable_bytes - device.card.outside_bytes - peak_bytes, 0)
    return [
        f"{said} {first} How many follow is not known. {_MANY_STEPS:,} more {step}s need "
        f"{format_bytes(_MANY_STEPS * each_bytes)} more, and the GPU will be full after about "
        f"{counted(left_bytes // each_bytes, f'more {step}')}."
    ]


def _described(growth: StepGrowth) -> str:
    if growth.loop:
        return f"Memory still grows after {counted(growth.step, 'iteration')} of the loop at {growth.loop}"
    return f"Memory still grows after step {growth.step}"


def _kept_in(holder: GrowingContainer | None) -> str:
    if holder is None:
        return ""
    graphs = ", the tensors of which keep their autograd graphs" if holder.keeps_graphs else ""
    if holder.element_bytes > 2 * holder.used_bytes:
        sizes = f"{format_bytes(holder.used_bytes)} of values in storages of {format_bytes(holder.element_bytes)}"
        graphs = f", the elements of which have {sizes} each"
    return f" in {holder.name} ({holder.where}){graphs}"
