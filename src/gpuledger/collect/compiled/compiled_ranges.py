"""Open a range around every kernel of compiled code in profiled steps, so that the kernel finds its modules."""

from __future__ import annotations

from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.compiled.compiled_graphs import CompiledGraphs, ObservedFunction
from gpuledger.model.journal.journal import FUSION_RANGE


class CompiledRanges:
    """Observes generated code while kernels are timed.

    Args:
        graphs: The compiled graphs.
        journal: Gets the list of kernels.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, graphs: CompiledGraphs, journal: RankJournal, guard: Guard) -> None:
        self.active = self.with_lines = False
        self.guard = guard
        self._graphs = graphs
        self._journal = journal
        self._kernels: list[dict[str, Any]] = []

    def install(self) -> None:
        """Observe all generated functions."""
        self.active = True
        self._graphs.observe(lambda function: _Observer(self, function), lambda _site: True)

    def remove(self) -> None:
        """Stop observing. Calls in progress end unobserved."""
        self.active = False
        self._graphs.stop_observing()

    def write(self) -> None:
        """Write the kernels that have a range."""
        if self._kernels:
            self._journal.fact(fusions=self._kernels)

    def names_of(self, function: ObservedFunction) -> list[str]:
        """Return the name of the range of each site; "" for a statement that launches nothing.

        A kernel without a place has no range either, so that it belongs to the module that runs.
        """
        names = []
        for site in function.sites:
            has_range = bool(site.kernel and (site.parts or function.unknown))
            names.append(f"{FUSION_RANGE}{len(self._kernels)}" if has_range else "")
            if site.kernel:
                self._kernels.append(self._graphs.describe(function, site, with_lines=self.with_lines))
        return names


class _Observer:
    """Observes one generated function."""

    def __init__(self, ranges: CompiledRanges, function: ObservedFunction) -> None:
        self._ranges = ranges
        self._names = ranges.names_of(function)

    def enter(self, _inputs: list[Any]) -> _Call | None:
        """Return the object to call back during this call; None if nothing is profiled."""
        return _Call(self._ranges, self._names) if self._ranges.active else None


class _Call:
    """One call of a generated function, with the range of the kernel that runs."""

    __slots__ = ("_names", "_opened", "_ranges")

    def __init__(self, ranges: CompiledRanges, names: list[str]) -> None:
        self._ranges = ranges
        self._names = names
        self._opened: Any = None

    def at(self, mark: int) -> None:
        """Close the range of the statement before, and open the one of the next."""
        try:
            self._close()
            name = self._names[mark]
            if name and self._ranges.active:
                opened = torch_private.open_range(name)
                opened.__enter__()
                self._opened = opened
        except BaseException as error:
            if not self._ranges.guard.absorbs(error):
                raise

    def made(self, _tensor: Any) -> None:
        """Ignore a new buffer."""

    def returns(self, _tensors: tuple[Any, ...]) -> None:
        """Ignore what the function returns."""

    def leave(self) -> None:
        """Close the last range."""
        try:
            self._close()
        except BaseException as error:
            if not self._ranges.guard.absorbs(error):
                raise

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.__exit__(None, None, None)
