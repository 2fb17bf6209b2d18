"""Compiled graphs of this process: which module and which source line each line of generated code belongs to.

A graph is read when it is compiled, because Inductor discards its nodes afterwards. Nothing runs in a compiled function
until a recording observes its lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.collect.adapter.compiled_cache import cache_directory, keep, recall
from gpuledger.collect.adapter.compiled_lines import find_modules
from gpuledger.collect.adapter.generated_code import (
    GeneratedFunction,
    LineObservation,
    LineObserver,
    Statement,
    UnknownCodeError,
    read_functions,
)
from gpuledger.collect.adapter.inductor import (
    LOST_WITHOUT,
    NOWHERE,
    CompiledGraph,
    CompilerWatch,
    Kernel,
    NodeOrigin,
    frames_at,
    parts_by_module,
    source_lines,
)
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.compiled.compile_log import CompileLog, totals
from gpuledger.model.journal.journal import CACHED_CODE, FOUND_BY_LINES

OUTSIDE = -1

_RECORD_AGAIN = "Set TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 to record its modules."

_FROM_A_CACHE = (
    "A compiled region was loaded from a cache that was filled without this version of gpuledger, or its code was "
    "changed since."
)
NOTES = {
    CACHED_CODE: f"{_FROM_A_CACHE} It is attributed to the module that was compiled. {_RECORD_AGAIN}",
    FOUND_BY_LINES: (
        f"{_FROM_A_CACHE} Its modules were found by source lines. If several modules run the same line in backward, "
        f"the module that contains them is shown. {_RECORD_AGAIN}"
    ),
}
"""Why the modules of a region are not known exactly -> note."""


@dataclass(frozen=True)
class Site:
    """One statement of generated code that allocates or launches.

    Attributes:
        line: Its line.
        kernel: Name of the kernel that it launches; "" for an allocation.
        main: The place to which its memory belongs, and its time if there is no other.
        parts: Places that share the kernel, each with the bytes moved there.
        nodes: Names of the nodes that the kernel computes.
        shared_with: Places that use the same memory later.
    """

    line: int
    kernel: str
    main: NodeOrigin
    parts: tuple[tuple[NodeOrigin, int], ...] = ()
    nodes: tuple[str, ...] = ()
    shared_with: tuple[NodeOrigin, ...] = ()

    @property
    def may_allocate(self) -> bool:
        """Return whether memory can be allocated here. Generated kernels get all buffers from the lines before."""
        return not self.kernel.startswith(("triton_", "cpp_fused_"))


@dataclass(frozen=True)
class ObservedFunction:
    """A generated function, and its sites in the order of their marks. ``unknown`` is that of its graph."""

    file: str
    generated: GeneratedFunction
    sites: tuple[Site, ...]
    unknown: str = ""


class CompiledGraphs:
    """Knows the generated code of this process, and lets one recording at a time observe its lines.

    Args:
        registry: Ids of modules.
        stacks: Gets the source lines of generated ones.
        journal: Gets the list of kernels, and notes.
        absorbs: Handles exceptions raised in gpuledger's code.
    """

    def __init__(
        self,
        registry: ModuleRegistry,
        stacks: StackTable,
        journal: RankJournal,
        absorbs: Callable[[BaseException], bool],
    ) -> None:
        self.functions: list[ObservedFunction] = []
        self._registry = registry
        self._stacks = stacks
        self._journal = journal
        self._watch = CompilerWatch(self.add, absorbs)
        self._cache = cache_directory(os.environ)
        self._observations: list[LineObservation] = []
        self._observer_for: Callable[[ObservedFunction], LineObserver] | None = None
        self._wanted: Callable[[Site], bool] = lambda _site: True
        self._sees_buffers = False
        self._unread: dict[str, str] = {}
        self._before = totals()
        self._log = CompileLog()

    def install(self) -> None:
        """Begin to watch the compiler."""
        self._before, self._log = totals(), CompileLog()
        self._watch.install()
        if self._watch.lost:
            lost = "; ".join(dict.fromkeys(LOST_WITHOUT[name] for name in self._watch.lost))
            self._journal.fact(compiled_unread={"": lost})

    def remove(self) -> None:
        """Stop watching the compiler and observing its code. Stores what was compiled meanwhile."""
        self.stop_observing()
        self._watch.remove()
        self._note_compilations()

    def _note_compilations(self) -> None:
        self._log.read()
        found = self._log.describe()
        graphs_before, seconds_before, breaks_before = self._before
        graphs, seconds, breaks = totals()
        if graphs > graphs_before or found:
            new = {reason: count - breaks_before.get(reason, 0) for reason, count in breaks.items()}
            new = {reason.strip().partition("\n")[0]: count for reason, count in new.items() if count > 0}
            facts = {"graphs": max(graphs - graphs_before, 0), "seconds": max(seconds - seconds_before, 0.0)}
            self._journal.fact(compilation={**facts, "breaks": new, **found})

    # -- observing lines ----------------------------------------------------------------------------------------

    def observe(
        self,
        observer_for: Callable[[ObservedFunction], LineObserver],
        wanted: Callable[[Site], bool],
        *,
        sees_buffers: bool = False,
    ) -> None:
        """Observe the lines of every generated function, of later ones as well.

        Args:
            observer_for: Returns the observer of one function.
            wanted: Which sites are observed.
            sees_buffers: Whether observers receive the new buffers.
        """
        self.stop_observing()
        self._observer_for, self._wanted, self._sees_buffers = observer_for, wanted, sees_buffers
        for function in self.functions:
            self._observe(function)

    def stop_observing(self) -> None:
        """Restore the code of all generated functions."""
        self._observer_for = None
        while self._observations:
            self._observations.pop().remove()

    def _observe(self, function: ObservedFunction) -> None:
        if self._observer_for is None or not function.sites:
            return
        marks = {site.line: number for number, site in enumerate(function.sites) if self._wanted(site)}
        observer = self._observer_for(function)
        try:
            observation = LineObservation(function.generated, observer, marks, sees_buffers=self._sees_buffers)
        except UnknownCodeError as error:
            self._note_unread(function.file, str(error))
        else:
            self._observations.append(observation)

    # -- graphs -------------------------------------------------------------------------------------------------

    def add(self, graph: CompiledGraph) -> None:
        """Add a compiled graph."""
        self._log.read()
        if not graph.unknown:
            keep(graph, self._cache, self._watch.possible)
        elif graph.unknown == CACHED_CODE:
            graph = recall(graph, self._cache, self._watch.possible) or graph
        try:
            functions = read_functions(graph.module)
            graph = self._found_again(graph, functions)
        except (UnknownCodeError, OSError) as error:
            self._note_unread(graph.file, str(error))
            return
        known = {id(function.generated.function) for function in self.functions}
        lines = source_lines(graph.file)
        for generated in functions:
            if id(generated.function) in known:
                continue
            sites = tuple(sites_of(graph, generated.statements, lines))
            function = ObservedFunction(graph.file, generated, sites, graph.unknown)
            self.functions.append(function)
            self._stacks.add_sources({(graph.file, site.line): site.main.frames for site in sites if site.main.frames})
            self._observe(function)
        self._journal.fact(compiled_graphs=len({function.file for function in self.functions}))

    def _found_again(self, graph: CompiledGraph, functions: list[GeneratedFunction]) -> CompiledGraph:
        """Return a graph from a cache with the modules that its comments and source lines lead to."""
        if graph.unknown != CACHED_CODE:
            return graph
        statements = [one for function in functions for one in function.statements]
        text = Path(graph.file).read_text(encoding="utf-8")
        return find_modules(graph, statements, text, self._watch.possible) or graph

    def note_called(self, function: ObservedFunction) -> None:
        """Record that a function runs in the recording, with a note if its modules are unknown."""
        if function.unknown:
            self._note_unread(function.file, function.unknown)
        if function.unknown in NOTES:
            self._journal.note(NOTES[function.unknown])

    def _note_unread(self, file: str, why: str) -> None:
        self._unread[Path(file).name] = why
        self._journal.fact(compiled_unread=dict(self._unread))

    def describe(self, function: ObservedFunction, site: Site) -> dict[str, Any]:
        """Return the facts of a kernel, from which its modules are found afterwards."""
        frames = [place.frames[0] for place, _ in site.parts or ((site.main, 0),) if place.frames]
        return {
            "file": Path(function.file).name,
            "function": function.generated.definition.name,
            "line": site.line,
            "kernel": site.kernel,
            "nodes": list(site.nodes),
            "parts": [
                {"path": place.path, "module_id": self._compiled_id(place), "moved_bytes": moved_bytes}
                for place, moved_bytes in site.parts
            ],
            "sources": [f"{file}:{line}" for file, line, _ in dict.fromkeys(frames)],
        }

    # -- modules ------------------------------------------------------------------------------------------------

    def resolve(self, place: NodeOrigin, base: int) -> int:
        """Return the id of a place's module, if the compiled function is called by module ``base``; -1 for none.

        A function can be compiled for one block and used by all blocks of the same class. So the path counts, from the
        calling module, and the identity at the time of compilation only if the path cannot tell.
        """
        compiled_id = self._compiled_id(place)
        if base == OUTSIDE:
            return compiled_id
        if not place.path:
            return base
        below = self._registry.below(base, place.path)
        if below == OUTSIDE and compiled_id != OUTSIDE and self._registry.is_below(compiled_id, base):
            return compiled_id
        return base if below == OUTSIDE else below

    def lacks_modules_of(self, function: ObservedFunction) -> bool:
        """Return whether a function has code of modules that are not registered.

        A function that calls a model can be compiled as a whole. Then nothing calls the model itself.
        """
        keys = {site.main.module_key for site in function.sites} - {0}
        return not keys <= self._registry.module_ids.keys()

    def note_called_inside(self, module_ids: Iterable[int]) -> None:
        """Record that compiled code of modules runs, without a call of the modules themselves."""
        for module_id in set(module_ids) - {OUTSIDE}:
            self._registry.note_called_inside(module_id)

    def _compiled_id(self, place: NodeOrigin) -> int:
        """Return the id of the module that was compiled; -1 if it is not known."""
        return self._registry.module_ids.get(place.module_key, OUTSIDE) if place.module_key else OUTSIDE


def sites_of(graph: CompiledGraph, statements: Iterable[Statement], lines: list[tuple[int, Any]]) -> Iterable[Site]:
    """Return the statements that allocate or launch, with their places.

    Args:
        graph: The compiled graph.
        statements: Those of one function of its file.
        lines: From :func:`source_lines`, used where the graph does not know a statement.
    """
    statements = list(statements)
    kernels = _kernels_of(graph, statements)
    renamed = {one.renames[0]: one.renames[1] for one in statements if one.renames}
    kept = {name for one in statements if one.returns for name in one.names}
    for number, one in enumerate(statements):
        if one.allocates:
            chain = _chain(one.allocates, renamed)
            places = [graph.buffers[name] for name in chain if name in graph.buffers]
            if not places:
                places = [_place_of_workspace(one, statements[number + 1 :], kernels)]
            main = places[-1] if chain[-1] in kept else places[0]
            others = tuple(place for place in dict.fromkeys(places) if place[:2] != main[:2])
            yield Site(one.line, "", _with_lines(main, one.line, lines), shared_with=others)
        elif one.kernel:
            kernel = kernels.get(one.line)
            main = max(kernel.parts, key=lambda part: part[1])[0] if kernel is not None else NOWHERE
            parts, nodes = (kernel.parts, kernel.nodes) if kernel is not None else ((), ())
            yield Site(one.line, one.kernel, _with_lines(main, one.line, lines), parts, nodes)


def _kernels_of(graph: CompiledGraph, statements: list[Statement]) -> dict[int, Kernel]:
    """Return ``line -> kernel``: a kernel is launched where one of its outputs is first used.

    Nothing is launched for an output that a plain assignment makes, such as an element of a tuple that a call returned.
    """
    of_output = {name: kernel for kernel in graph.kernels for name in kernel.outputs}
    waiting = [kernel for kernel in graph.kernels if kernel.changed]
    found: dict[int, Kernel] = {}
    done: set[int] = set()
    for one in statements:
        if not one.kernel:
            if one.assigns in of_output:
                done.add(id(of_output[one.assigns]))
            continue
        mine = {id(of_output[name]): of_output[name] for name in one.names if name in of_output}
        launched = [kernel for key, kernel in mine.items() if key not in done]
        if not launched:
            changing = (other for other in waiting if set(other.changed) & set(one.names))
            launched = [other for other in changing if id(other) not in done][:1]
        known = [kernel for kernel in launched if kernel.parts]
        if known:
            found[one.line] = _combined(known)
            done.update(map(id, known))
    return found


def _combined(kernels: list[Kernel]) -> Kernel:
    """Return the kernels that one call launches as one. On the CPU, Inductor puts several into one C++ function."""
    if len(kernels) == 1:
        return kernels[0]
    parts = parts_by_module(part for kernel in kernels for part in kernel.parts)
    outputs, changed, nodes = (
        tuple(dict.fromkeys(name for kernel in kernels for name in getattr(kernel, names)))
        for names in ("outputs", "changed", "nodes")
    )
    return Kernel(outputs, changed, nodes, parts)


def _chain(name: str, renamed: dict[str, str]) -> list[str]:
    """Return the names that one buffer has, in order."""
    chain = [name]
    while chain[-1] in renamed and renamed[chain[-1]] not in chain:
        chain.append(renamed[chain[-1]])
    return chain


def _place_of_workspace(one: Statement, later: list[Statement], kernels: dict[int, Kernel]) -> NodeOrigin:
    """Return the place of the first kernel that uses a buffer which is no output."""
    user = next(
        (kernels[other.line] for other in later if other.line in kernels and one.allocates in other.names), None
    )
    return NOWHERE if user is None else max(user.parts, key=lambda part: part[1])[0]


def _with_lines(place: NodeOrigin, line: int, lines: list[tuple[int, Any]]) -> NodeOrigin:
    """Return a place with source frames, from the map of the generated file if it has none of its own."""
    return place if place.frames else place._replace(frames=frames_at(lines, line))
