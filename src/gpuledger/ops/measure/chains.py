"""Measure the host time of a module call and of an autograd node, as the increment of a chain per link."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.host_overhead import AUTOGRAD_NODE, KEYS, MODULE_CALL, NODE_MADE, host_record
from gpuledger.ops.database.operator_database import OperatorDatabase
from gpuledger.ops.database.statistics import summarize
from gpuledger.ops.measure.blocks import Clock
from gpuledger.ops.measure.measured_device import Device

SHORT, LONG = 100, 300
"""Links of the two chains. Their difference has no start-up cost."""
ROUNDS, WARM_UP = 40, 5


def fill_around(database: OperatorDatabase, place: Device, clock_ns: Clock = time.time_ns) -> None:
    """Measure host times of modules and autograd that are missing from the database, for this device and software."""
    lacking = database.missing([key.digest for key in KEYS], place.environment)
    if not lacking:
        return
    database.put_environment(place.environment)
    database.put_keys(KEYS)
    for key, measure in _MEASURED.items():
        if key.digest in lacking:
            _put(database, place, key, [max(link_ns, 0.0) for link_ns in measure(place)], clock_ns)


def _put(database: OperatorDatabase, place: Device, key: OperatorKey, links_ns: list[float], clock_ns: Clock) -> None:
    how = {"how": "chain", "links": [SHORT, LONG]}
    database.put_records([host_record(key, place.environment, summarize(links_ns), how, clock_ns())])


def links_of(make: Callable[[int, Device], Callable[[], object]], place: Device) -> list[float]:
    """Return the time of one link in ns, for each of several rounds.

    Args:
        make: Returns a function that runs a chain with the given number of links.
        place: The device.

    Source: host clock, a long chain minus a short one, measured right after each other.
    """
    short, long = make(SHORT, place), make(LONG, place)
    for run in (short, long) * WARM_UP:
        run()
    return [(_took_ns(long) - _took_ns(short)) / (LONG - SHORT) for _ in range(ROUNDS)]


def _took_ns(run: Callable[[], object]) -> int:
    start_ns = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start_ns


def module_chain(links: int, place: Device) -> Callable[[], object]:
    """Return a function that calls ``links`` empty modules."""
    model = nn.Sequential(*(nn.Identity() for _ in range(links))).eval()
    x = torch.zeros(1, device=place.device)

    def run() -> object:
        with torch.no_grad():
            return model(x)

    return run


def node_chain(links: int, place: Device) -> Callable[[], object]:
    """Return a function that runs backward through ``links`` nodes of views, which launch nothing.

    Creating the nodes is not included: see :func:`making_ns`.
    """
    start = torch.zeros(1, device=place.device, requires_grad=True)
    with torch.enable_grad():
        end = start
        for _ in range(links):
            end = end.view(1)
    gradient = torch.zeros(1, device=place.device)

    def run() -> object:
        return torch.autograd.grad(end, start, gradient, retain_graph=True)

    return run


def making_ns(place: Device) -> list[float]:
    """Return the time that creating a node adds to an operator's call, in ns, for each of several rounds.

    Source: links of a chain of views with autograd, minus those of one without.
    """
    graphs, bare = (links_of(partial(_views, needs_grad=needs_grad), place) for needs_grad in (True, False))
    return [with_node - without for with_node, without in zip(graphs, bare, strict=True)]


def _views(links: int, place: Device, *, needs_grad: bool) -> Callable[[], object]:
    """Return a function that creates ``links`` views, each of the one before."""
    start = torch.zeros(1, device=place.device, requires_grad=needs_grad)

    def run() -> object:
        end = start
        with torch.enable_grad():
            for _ in range(links):
                end = end.view(1)
        return end

    return run


_MEASURED: dict[OperatorKey, Callable[[Device], list[float]]] = {
    MODULE_CALL: partial(links_of, module_chain),
    AUTOGRAD_NODE: partial(links_of, node_chain),
    NODE_MADE: making_ns,
}
