"""``gpuledger ops campaign``: capture, measure, whole models, comparison and picture, from one file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import json_option, output_option, print_json, print_lines, print_notes
from gpuledger.cli.ops.capture import not_captured_lines
from gpuledger.cli.ops.common import book_option, config_option, time_limit_option, trust_files_option
from gpuledger.cli.ops.compare import document_of, draw_pairs_into, lines_of
from gpuledger.cli.ops.measure import (
    energy_share_of,
    filled_lines,
    measuring_options,
    method_of,
    parse_time_limit_ns,
    progress_bar,
)
from gpuledger.config import DEFAULT_BOOK
from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.files.writing import write_whole
from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.ops.database.book import Book
    from gpuledger.ops.database.method import Method
    from gpuledger.ops.measure.measure import Progress, Tell
    from gpuledger.ops.measure.place import Place
    from gpuledger.ops.totals.compare import Pair
    from gpuledger.ops.workloads.workload import Workload
    from gpuledger.services.watching import Watch

FOLDER = "campaign"


@click.command(
    "campaign",
    short_help="Capture, measure and compare what one file lists.",
    epilog="""\b
Examples:
  gpuledger ops campaign --config campaign.yml
  gpuledger ops campaign --config campaign.yml --ray local --book postgresql://me@host/books""",
)
@config_option(required=True)
@trust_files_option()
@book_option(None, f"  [default: the file's with --trust-files, else {DEFAULT_BOOK}]")
@click.option("--ray", "ray_address", metavar="ADDRESS|local", help="Measure on every GPU that Ray has.")
@click.option("--workers", type=click.IntRange(min=1), default=1, metavar="N", help="Ray workers on the CPU.")
@time_limit_option()
@output_option("Folder of workloads, JSON and picture.", "DIR", FOLDER)
@measuring_options()
@json_option()
def campaign_command(
    config: str,
    trust_files: bool,
    book_url: str | None,
    ray_address: str | None,
    workers: int,
    time_limit: str | None,
    output: str,
    as_json: bool,
    **how: Any,
) -> None:
    """Capture the models a file lists, measure what the book lacks, and hold the sums beside the whole models.

    What is done is what the book holds: after a stop the same command goes on, and a model added later is measured
    then. With --ray each GPU measures one operator at a time, and this process alone writes into the book.
    """
    if ray_address and time_limit:
        raise UsageError("campaign: --time-limit with --ray", hint="stop it with Ctrl-C; the same command goes on")
    if ray_address:
        from gpuledger.ops.measure.ray_crew import load_ray

        load_ray()  # before anything is captured
    method, budget_ns = method_of(how), None if time_limit is None else parse_time_limit_ns(time_limit)
    from gpuledger.ops.database.book import open_book
    from gpuledger.ops.measure.campaign_file import read_campaign
    from gpuledger.ops.measure.names import name_kernels
    from gpuledger.ops.measure.place import find_place

    campaign = read_campaign(Path(config), trusted=trust_files)
    if campaign.book and not book_url and not trust_files:
        raise InputError(
            f"{config}: book: a file may not say where results are written", hint="--book, or --trust-files"
        )
    place = find_place(how["device"], force=how["allow_busy"])
    book, folder = open_book(book_url or campaign.book or DEFAULT_BOOK), Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    workloads, failures = _captured(campaign.wanted, place, folder)
    share_frac = energy_share_of(how)
    with progress_bar() as tell, _watched(place, folder, everywhere=ray_address is not None) as windows:
        if ray_address:
            crew = {"address": ray_address, "device": how["device"], "workers": workers, "force": how["allow_busy"]}
            _measure_with_ray(crew, workloads, book, place, method, share_frac, windows, tell)
        else:
            from gpuledger.ops.measure.fill import fill

            with windows.one_after_the_other(tell) as told:
                filled = fill(
                    workloads, book, place, method, energy_share_frac=share_frac, budget_ns=budget_ns, tell=told
                )
            print_notes(f"gpuledger: {line}" for line in filled_lines(filled))
        pairs = _compared(workloads, book, place, method, windows, trusted=trust_files)
    name_kernels(book, place)
    _write(pairs, place, folder, as_json=as_json)
    if failures:
        raise InputError(f"{len(failures)} of {len(campaign.wanted)} workloads were not captured", hint=failures[0])


def _captured(wanted: Sequence[Any], place: Place, folder: Path) -> tuple[list[Workload], list[str]]:
    """Return the workloads, written into the folder; what cannot be captured is named and left out."""
    from gpuledger.ops.workloads.captures import asked_for, capture_model
    from gpuledger.ops.workloads.workload import SUFFIX

    workloads, failures = [], []
    for one in wanted:
        try:
            workload = capture_model(asked_for(one), None if place.on_card else "cpu")
        except GpuLedgerError as error:
            failures.append(error.message)
            print_notes(not_captured_lines(one, error))
            continue
        write_whole(folder / (workload.name + SUFFIX), workload.encoded())
        workloads.append(workload)
    if not workloads:
        raise InputError("campaign: no workload could be captured", hint=failures[0])
    return workloads, failures


class _Windows:
    """Windows of the campaign's own run; none on a processor, where there is nothing to sample."""

    def __init__(self, run: Watch | None) -> None:
        self._run = run

    def window(self, name: str) -> AbstractContextManager[None]:
        """Return what is open while ``name`` is measured."""
        return nullcontext() if self._run is None else self._run.window(name)

    @contextmanager
    def one_after_the_other(self, tell: Tell | None) -> Iterator[Tell]:
        """Yield what is told before each operator: its window is open until the next one's, or the end."""
        with ExitStack() as open_:

            def told(progress: Progress) -> None:
                open_.close()
                open_.enter_context(self.window(f"{progress.done:05d} {progress.operator}"))
                if tell is not None:
                    tell(progress)

            yield told


@contextmanager
def _watched(place: Place, folder: Path, *, everywhere: bool) -> Iterator[_Windows]:
    """Sample the card meanwhile, or ``everywhere`` all cards of this machine."""
    if place.sensors is None:
        yield _Windows(None)
        return
    from gpuledger.services.watching import watch

    gpus = None if everywhere else [place.sensors.index]
    with watch("campaign", gpus=gpus, out=folder / f"campaign-{time.time_ns()}.ledger") as run:
        yield _Windows(run)


def _measure_with_ray(
    crew_of: dict[str, Any],
    workloads: Sequence[Workload],
    book: Book,
    place: Place,
    method: Method,
    share_frac: float,
    windows: _Windows,
    tell: Tell | None,
) -> None:
    """Measure on all of Ray's workers; what the host needs around operators is measured here, before they begin."""
    from gpuledger.ops.measure.campaign import measure_workloads
    from gpuledger.ops.measure.chains import fill_around
    from gpuledger.ops.measure.ray_crew import RayCrew, connected

    fill_around(book, place)
    numbers = itertools.count()
    with connected(crew_of["address"]) as ray:
        device = crew_of["device"] or "cuda"
        done = measure_workloads(
            RayCrew(ray, device, method, workers=crew_of["workers"], force=crew_of["force"]),
            book,
            workloads,
            method,
            energy_share_frac=share_frac,
            watch=lambda worker, task: windows.window(f"{next(numbers):05d} worker {worker}: {task.key.name}"),
            tell=tell,
            clock_ns=time.time_ns,
        )
    died = f", {counted(done.deaths, 'worker')} died and came back" if done.deaths else ""
    again = f", {done.repeated} measured again where the card drifted" if done.repeated else ""
    print_notes([f"gpuledger: {counted(done.measured, 'operator')} measured, {done.failed} failed{died}{again}"])


def _compared(
    workloads: Sequence[Workload], book: Book, place: Place, method: Method, windows: _Windows, *, trusted: bool
) -> list[Pair]:
    from gpuledger.ops.measure.captured_models import step_of
    from gpuledger.ops.measure.whole import measure_whole
    from gpuledger.ops.predict.choose import cache_folder, shelf_of, sum_measured
    from gpuledger.ops.totals.compare import Pair

    shelf = shelf_of(book, place.environment)
    pairs = []
    for workload in workloads:
        with windows.window(workload.name):
            whole = measure_whole(step_of(workload, place, trusted=trusted), place, method)
        pairs.append(Pair(workload.name, workload.mode, sum_measured(workload, shelf, cache_folder()), whole))
    return pairs


def _write(pairs: Sequence[Pair], place: Place, folder: Path, *, as_json: bool) -> None:
    """Print the comparison, and keep it in the folder as JSON and as a picture."""
    import json

    document = document_of(pairs, place.environment.to_json())
    write_whole(folder / "compare.json", f"{json.dumps(document, indent=1)}\n".encode("ascii"))
    if as_json:
        print_json(document)
    else:
        print_lines([place.environment.card, *lines_of(pairs)])
    try:
        draw_pairs_into(pairs, folder / "compare.png", place.environment.card)
    except UsageError as error:  # matplotlib is an extra
        print_notes([f"gpuledger: no picture: {error.message}"])
