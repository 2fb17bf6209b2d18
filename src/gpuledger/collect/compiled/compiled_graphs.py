"""Compiled graphs of this process: which module and which source line each line of generated code belongs to.

A graph is read when it is compiled, because Inductor discards its nodes afterwards. Nothing runs in a compiled function
until a recording observes its lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from gpuledger.collect.adapter.compiler.backward_cache import keep_backward, recall_backward
from gpuledger.collect.adapter.compiler.compiled_cache import cache_directory, keep, recall, remember, remembered
from gpuledger.collect.adapter.compiler.compiled_lines import find_modules
from gpuledger.collect.adapter.compiler.data_flow import inputs_of, is_of_backward
from gpuledger.collect.adapter.compiler.generated_code import (
    GeneratedFunction,
    LineObservation,
    LineObserver,
    UnknownCodeError,
    read_functions,
)
from gpuledger.collect.adapter.compiler.graph_nodes import CompiledGraph, NodeOrigin
from gpuledger.collect.adapter.compiler.graph_operations import GraphFlow
from gpuledger.collect.adapter.compiler.inductor import LOST_WITHOUT, CompilerWatch, source_lines
from gpuledger.collect.adapter.compiler.traced_code import places_of_traced
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import Frames, StackTable, frames_from, is_within_torch
from gpuledger.collect.compiled.compile_log import CompileLog, totals
from gpuledger.collect.compiled.copied_regions import module_in_copy
from gpuledger.collect.compiled.sites import Site, below_callers, sites_of
from gpuledger.model.journal.journal import CACHED_CODE, FOUND_BY_LINES, WITHOUT_MODULES

OUTSIDE = -1

_WHOLE_GRAPH = "call"
"""Name of the generated function that gets the inputs of the graph."""

_RECORD_AGAIN = "Set TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 to record its modules."

_FROM_A_CACHE = (
    "A compiled region was loaded from a cache that was filled without this version of gpuledger, or its code was "
    "changed since."
)
NOTES = {
    CACHED_CODE: f"{_FROM_A_CACHE} It is attributed to the module that was compiled. {_RECORD_AGAIN}",
    FOUND_BY_LINES: (
        f"{_FROM_A_CACHE} Its modules were found by source lines and weights. If several modules run the same line "
        f"and use no weight there, the module that contains them is shown. {_RECORD_AGAIN}"
    ),
    WITHOUT_MODULES: (
        "Compiled autograd has compiled backward code of unknown modules. It is of code that is not compiled, such as "
        "a loss, or of a compiled region from a cache that was filled without this version of gpuledger. Its memory "
        "and time are outside modules. To record its modules, compile them, or switch compiled autograd off. For a "
        "region from a cache, set TORCHINDUCTOR_FORCE_DISABLE_CACHES=1."
    ),
}
"""Why the modules of a region are not known exactly -> note."""


@dataclass(frozen=True)
class ObservedFunction:
    """A generated function.

    Attributes:
        file: Its file.
        generated: The function.
        sites: Its sites in the order of their marks.
        unknown: Why the modules of its graph are not known; "" if they are.
        inputs: Names of its inputs in the graph, if what it computes is known.
        flow: What it computes from them.
    """

    file: str
    generated: GeneratedFunction
    sites: tuple[Site, ...]
    unknown: str = ""
    inputs: tuple[str, ...] = ()
    flow: GraphFlow = field(default_factory=GraphFlow)


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
        self._watch.autograd.keep = partial(keep_backward, self._cache)
        self._watch.autograd.recall = lambda code: recall_backward(self._cache, code, self._watch.captured)
        self._observations: list[LineObservation] = []
        self._observer_for: Callable[[ObservedFunction], LineObserver] | None = None
        self._wanted: Callable[[Site], bool] = lambda _site: True
        self._sees_buffers = self._sees_results = False
        self._unread: dict[str, str] = {}
        self._callers: dict[tuple[str, str], Frames] = {}
        """File and name of a function whose source lines are torch's own -> frames of a call."""
        self._before = totals()
        self._log = CompileLog()
        registry.on_added = self._module_added

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
        if graphs > graphs_before or found or (self._registry.has_compiled and not graphs):
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
        sees_results: bool = False,
    ) -> None:
        """Observe the lines of every generated function, of later ones as well.

        Args:
            observer_for: Returns the observer of one function.
            wanted: Which sites are observed.
            sees_buffers: Whether observers receive the new buffers.
            sees_results: Whether observers receive what functions with a known flow return.
        """
        self.stop_observing()
        self._observer_for, self._wanted = observer_for, wanted
        self._sees_buffers, self._sees_results = sees_buffers, sees_results
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
            sees_results = self._sees_results and bool(function.flow.results)
            observation = LineObservation(
                function.generated, observer, marks, sees_buffers=self._sees_buffers, sees_results=sees_results
            )
        except UnknownCodeError as error:
            self._note_unread(function.file, str(error))
        else:
            self._observations.append(observation)

    # -- graphs -------------------------------------------------------------------------------------------------

    def add(self, graph: CompiledGraph) -> None:
        """Add a compiled graph."""
        self._log.read()
        try:
            functions = read_functions(graph.module)
            if graph.unknown in ("", WITHOUT_MODULES):
                keep(graph, self._cache, self._watch.possible)
            elif graph.unknown == CACHED_CODE:
                graph = remembered(graph) or recall(graph, self._cache, self._watch.possible) or graph
            graph = self._found_again(graph, functions)
            if graph.unknown != CACHED_CODE:
                remember(graph)
            elif self._watch.autograd.is_at_work:
                graph = replace(graph, unknown=WITHOUT_MODULES)
        except (UnknownCodeError, OSError) as error:
            self._note_unread(graph.file, str(error))
            return
        known = {id(function.generated.function) for function in self.functions}
        lines = source_lines(graph.file)
        inputs, flow = self._flow(graph)
        sites_by_name = below_callers({one.name: tuple(sites_of(graph, one.statements, lines)) for one in functions})
        for generated in functions:
            if id(generated.function) in known:
                continue
            sites = sites_by_name[generated.name]
            function = ObservedFunction(graph.file, generated, sites, graph.unknown)
            if generated.name == _WHOLE_GRAPH:
                function = replace(function, inputs=inputs, flow=flow)
            self.functions.append(function)
            self._stacks.add_sources({(graph.file, site.line): site.main.frames for site in sites if site.main.frames})
            self._stacks.leave_out(graph.file)
            self._observe(function)
        self._journal.fact(compiled_graphs=len({function.file for function in self.functions}))

    def _flow(self, graph: CompiledGraph) -> tuple[tuple[str, ...], GraphFlow]:
        """Return the inputs of a graph that is being compiled, and what it computes from them."""
        captured = self._watch.being_compiled
        if captured is None or not captured.flow.operations:
            return (), GraphFlow()
        text = Path(graph.file).read_text(encoding="utf-8")
        inputs = () if is_of_backward(text) else tuple(inputs_of(captured, text))
        return inputs, captured.flow if inputs else GraphFlow()

    def _module_added(self, module: nn.Module, module_id: int) -> None:
        """Learn which modules and source lines the code of a graph module computes, as of ``torch.export``."""
        places = places_of_traced(module)
        if places:
            self._stacks.add_sources({line: place.frames for line, place in places.items() if place.frames})
            inside = {line: self._nearest(module_id, place.path) for line, place in places.items() if place.path}
            self._stacks.add_places({line: (module_id, number) for line, number in inside.items()})

    def _nearest(self, module_id: int, path: str) -> int:
        """Return the id of the module at a path below another one, or of the nearest module around that place."""
        while path:
            found = self._registry.below(module_id, path)
            if found != OUTSIDE:
                return found
            path = path.rpartition(".")[0]
        return module_id

    def _found_again(self, graph: CompiledGraph, functions: list[GeneratedFunction]) -> CompiledGraph:
        """Return a graph from a cache with the modules that its comments and source lines lead to."""
        if graph.unknown != CACHED_CODE:
            return graph
        statements = [one for function in functions for one in function.statements]
        text = Path(graph.file).read_text(encoding="utf-8")
        return find_modules(graph, statements, text, self._watch.possible) or graph

    def note_called(self, function: ObservedFunction, frame: FrameType) -> None:
        """Record that a function runs in the recording, called in ``frame``, with a note if its modules are unknown."""
        if any(is_within_torch(place.frames) for site in function.sites for place in site.places):
            self._callers.setdefault((function.file, function.generated.name), frames_from(frame))
        if function.unknown:
            self._note_unread(function.file, function.unknown)
        if function.unknown in NOTES:
            self._journal.note(NOTES[function.unknown])

    def frames_of(self, function: ObservedFunction, place: NodeOrigin) -> Frames:
        """Return the source lines of a place, with those that called the function if all others are torch's own.

        After a graph break inside torch, as in an optimizer's step, Dynamo knows none of the program's lines.
        """
        callers = self._callers.get((function.file, function.generated.name), ())
        return place.frames + callers if is_within_torch(place.frames) else place.frames

    def _note_unread(self, file: str, why: str) -> None:
        self._unread[Path(file).name] = why
        self._journal.fact(compiled_unread=dict(self._unread))

    def describe(self, function: ObservedFunction, site: Site, *, with_lines: bool) -> dict[str, Any]:
        """Return the facts of a kernel, from which its modules and, if wanted, its lines are found afterwards."""
        frames = [place.frames[0] for place, _ in site.parts or ((site.main, 0),) if place.frames]
        return {
            "file": Path(function.file).name,
            "function": function.generated.name,
            "line": site.line,
            "kernel": site.kernel,
            "nodes": list(site.nodes),
            "parts": [
                {
                    "path": place.path,
                    "module_id": self._compiled_id(place),
                    "moved_bytes": moved_bytes,
                    "stack_id": self._stacks.intern(self.frames_of(function, place)) if with_lines else -1,
                }
                for place, moved_bytes in site.parts
            ],
            "sources": [f"{file}:{line}" for file, line, _ in dict.fromkeys(frames)],
            **({"in_optimizer": True} if site.in_optimizer else {}),
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
        keys = {key for site in function.sites for key in (site.main.module_key, *site.main.among)} - {0}
        regions = self._watch.autograd.regions
        known = {one for key in keys for one in (regions[key].modules.values() if key < 0 else (key,))}
        return not known <= self._registry.module_ids.keys()

    def note_called_inside(self, module_ids: Iterable[int]) -> None:
        """Record that compiled code of modules runs, without a call of the modules themselves."""
        for module_id in set(module_ids) - {OUTSIDE}:
            self._registry.note_called_inside(module_id)

    def _compiled_id(self, place: NodeOrigin) -> int:
        """Return the id of the module that was compiled; -1 if it is not known."""
        if place.module_key < 0:
            return module_in_copy(self._registry, self._watch.autograd.regions[place.module_key], place.path)
        if place.among:
            return self._registry.around([self._registry.module_ids.get(key, OUTSIDE) for key in place.among])
        return self._registry.module_ids.get(place.module_key, OUTSIDE) if place.module_key else OUTSIDE
