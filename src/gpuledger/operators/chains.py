"""Measures what a module's call and an autograd node take the host: how much longer a chain of them gets with each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import nn

from gpuledger.operators.around import AUTOGRAD_NODE, KEYS, MODULE_CALL
from gpuledger.operators.blocks import Clock
from gpuledger.operators.book import Book
from gpuledger.operators.place import Place
from gpuledger.operators.records import Record
from gpuledger.operators.statistics import summarize

SHORT, LONG = 100, 300
"""Links of the two chains; what is around a chain is in both."""
ROUNDS, WARM_UP = 40, 5


def fill_around(book: Book, place: Place, clock_ns: Clock = time.time_ns) -> None:
    """Measure what the book lacks of modules and autograd for this device and software."""
    if not book.missing([key.digest for key in KEYS], place.environment):
        return
    book.put_environment(place.environment)
    book.put_keys(KEYS)
    for key, chain in ((MODULE_CALL, module_chain), (AUTOGRAD_NODE, node_chain)):
        spread = summarize([max(link_ns, 0.0) for link_ns in links_of(chain, place)])
        book.put_records(
            [
                Record(
                    key.digest,
                    place.environment.digest,
                    {"mode": "host", "how": "chain", "links": [SHORT, LONG]},
                    spread.median,
                    spread.low,
                    spread.high,
                    blocks=({"kind": "summary", **asdict(spread)},),
                    measured_ns=clock_ns(),
                )
            ]
        )


def links_of(make: Callable[[int, Place], Callable[[], object]], place: Place) -> list[float]:
    """Return the nanoseconds of one link, of several rounds.

    Args:
        make: Returns what runs a chain of so many links once.
        place: Where.

    Source: the host's clock around a long chain less a short one, one right after the other.
    """
    short, long = make(SHORT, place), make(LONG, place)
    for run in (short, long) * WARM_UP:
        run()
    return [(_took_ns(long) - _took_ns(short)) / (LONG - SHORT) for _ in range(ROUNDS)]


def _took_ns(run: Callable[[], object]) -> int:
    start_ns = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start_ns


def module_chain(links: int, place: Place) -> Callable[[], object]:
    """Return what calls so many modules that do nothing."""
    model = nn.Sequential(*(nn.Identity() for _ in range(links))).eval()
    x = torch.zeros(1, device=place.device)

    def run() -> object:
        with torch.no_grad():
            return model(x)

    return run


def node_chain(links: int, place: Place) -> Callable[[], object]:
    """Return what goes back through so many nodes, each of a view: nothing is launched.

    The making of the nodes is not in it: an operator's own launch in grad mode has that.
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
