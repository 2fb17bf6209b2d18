"""The statements of generated code that allocate or launch, each with the places whose nodes it computes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpuledger.collect.adapter.compiler.generated_code import Statement
from gpuledger.collect.adapter.compiler.graph_nodes import (
    NOWHERE,
    CompiledGraph,
    Frames,
    Kernel,
    NodeOrigin,
    parts_by_module,
)
from gpuledger.collect.adapter.compiler.inductor import frames_at

_OPTIMIZERS = os.path.dirname(torch.optim.__file__) + os.sep
_NO_OPTIMIZERS = ("lr_scheduler.py", "swa_utils.py")
"""Files beside the optimizers whose code updates no weights."""


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

    @property
    def in_optimizer(self) -> bool:
        """Return whether an optimizer's step computes this."""
        return any(_are_of_optimizer(place.frames) for place in self.places)

    @property
    def places(self) -> tuple[NodeOrigin, ...]:
        """Return the main place and those of the parts."""
        return (self.main, *(place for place, _ in self.parts))


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
        elif one.enters:
            yield Site(one.line, "", NOWHERE)
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
        if one.kernel in graph.bodies:
            called = [kernel for kernel in mine.values() if kernel.parts]
            found[one.line] = called[0] if called else Kernel((), (), (), ((graph.bodies[one.kernel], 0),))
            done.update(mine)
            continue
        launched = [kernel for key, kernel in mine.items() if key not in done]
        if not launched:
            changing = (other for other in waiting if set(other.changed) & set(one.names))
            launched = [other for other in changing if id(other) not in done][:1]
        known = [kernel for kernel in launched if kernel.parts]
        if known:
            found[one.line] = _combined(known)
            done.update(map(id, known))
    return found


def below_callers(sites: Mapping[str, Sequence[Site]]) -> dict[str, tuple[Site, ...]]:
    """Return the sites of the functions of one file. Paths in a body are below the module that calls it.

    A body can run for several modules, as that of a nested region does, and is compiled for one of them. What has no
    place of its own belongs to the module that calls the body.

    Args:
        sites: Name of a function -> its sites.
    """
    found = {}
    for name, own in sites.items():
        calls = [site.main.path for others in sites.values() for site in others if site.kernel == name]
        paths = [place.path for site in own for place in site.places if place.path]
        above = next((call for call in calls if all(_is_below(path, call) for path in paths)), "")
        found[name] = tuple(_in_body(site, above) for site in own) if calls else tuple(own)
    return found


def _are_of_optimizer(frames: Frames) -> bool:
    return any(file.startswith(_OPTIMIZERS) and not file.endswith(_NO_OPTIMIZERS) for file, _, _ in frames)


def _is_below(path: str, above: str) -> bool:
    return not above or f"{path}.".startswith(f"{above}.")


def _in_body(site: Site, above: str) -> Site:
    def below(place: NodeOrigin) -> NodeOrigin:
        return place._replace(path=place.path[len(above) :].lstrip(".") if above else place.path)

    parts = site.parts or (((site.main, 0),) if site.kernel else ())
    return replace(site, main=below(site.main), parts=tuple((below(place), size) for place, size in parts))


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
