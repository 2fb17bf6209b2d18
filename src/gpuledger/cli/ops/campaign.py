"""``gpuledger ops campaign``: capture, measure, whole models, comparison and picture, from one file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import json_option, print_json, print_lines, print_notes
from gpuledger.cli.ops.compare import document_of, draw_pairs_into, lines_of
from gpuledger.cli.ops.measure import filled_lines, measuring_options, method_of, parse_budget_ns, progress_bar
from gpuledger.config import DEFAULT_BOOK
from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.units import parse_frac

if TYPE_CHECKING:
    from gpuledger.operators.book import Book
    from gpuledger.operators.compare import Pair
    from gpuledger.operators.measure import Progress, Tell
    from gpuledger.operators.method import Method
    from gpuledger.operators.place import Place
    from gpuledger.operators.workload import Workload

FOLDER = "campaign"


@click.command(
    "campaign",
    short_help="Capture, measure and compare what one file lists.",
    epilog="""\b
Examples:
  gpuledger ops campaign --config campaign.yml
  gpuledger ops campaign --config campaign.yml --ray local --book postgresql://me@host/books""",
)
@click.option("--config", required=True, metavar="FILE|DIR", help="A campaign.yml, or a folder of summary.yml files.")
@click.option("--book", "book_url", metavar="FILE|URL", envvar="GPULEDGER_BOOK", help="[default: the file's, else "
              f"{DEFAULT_BOOK}]")  # fmt: skip
@click.option("--ray", "ray_address", metavar="ADDRESS|local", help="Measure on every GPU that Ray has.")
@click.option("--workers", type=click.IntRange(min=1), default=1, metavar="N", help="Of Ray on a processor.")
@click.option("--budget", metavar="TIME", help="Begin no operator after so long, such as 10m; not with --ray.")
@click.option("-o", "--output", default=FOLDER, show_default=True, metavar="DIR", help="Where workloads, JSON and "
              "picture go.")  # fmt: skip
@measuring_options()
@json_option()
def campaign_command(
    config: str,
    book_url: str | None,
    ray_address: str | None,
    workers: int,
    budget: str | None,
    output: str,
    as_json: bool,
    **how: Any,
) -> None:
    """Capture the models a file lists, measure what the book lacks, and hold the sums beside the whole models.

    What is done is what the book holds: after a stop the same command goes on, and a model added later is measured
    then. With --ray each GPU measures one operator at a time, and this process alone writes into the book.
    """
    if ray_address and budget:
        raise UsageError("campaign: --budget with --ray", hint="stop it with Ctrl-C; the same command goes on")
    method, budget_ns = method_of(how), None if budget is None else parse_budget_ns(budget)
    from gpuledger.operators.book import open_book
    from gpuledger.operators.campaign_file import read_campaign
    from gpuledger.operators.place import find_place

    campaign = read_campaign(Path(config))
    place = find_place(how["device"], force=how["force"])
    book, folder = open_book(book_url or campaign.book or DEFAULT_BOOK), Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    workloads, failures = _captured(campaign.wanted, place, folder)
    with progress_bar() as tell, _watched(place, folder, tell) as told:
        if ray_address:
            _measure_with_ray(ray_address, workloads, book, method, how, workers, told)
        else:
            from gpuledger.operators.fill import fill

            share_frac = parse_frac(how["energy_share"])
            filled = fill(workloads, book, place, method, energy_share_frac=share_frac, budget_ns=budget_ns, tell=told)
            print_notes(f"gpuledger: {line}" for line in filled_lines(filled))
    pairs = _compared(workloads, book, place, method)
    _write(pairs, place, folder, as_json=as_json)
    if failures:
        raise InputError(f"{len(failures)} of {len(campaign.wanted)} workloads were not captured", hint=failures[0])


def _captured(wanted: Sequence[Any], place: Place, folder: Path) -> tuple[list[Workload], list[str]]:
    """Return the workloads, written into the folder; what cannot be captured is named and left out."""
    from gpuledger.operators.captures import asked_for, capture_model
    from gpuledger.operators.workload import SUFFIX

    workloads, failures = [], []
    for one in wanted:
        try:
            workload = capture_model(asked_for(one), None if place.on_card else "cpu")
        except GpuLedgerError as error:
            failures.append(error.message)
            print_notes([f"gpuledger: not captured: {one.model}: {error.message}"])
            continue
        workload.write(folder / (workload.name + SUFFIX))
        workloads.append(workload)
    if not workloads:
        raise InputError("campaign: no workload could be captured", hint=failures[0])
    return workloads, failures


@contextmanager
def _watched(place: Place, folder: Path, tell: Tell | None) -> Iterator[Tell | None]:
    """Sample the card meanwhile, with a window for each operator; on a processor there is nothing to sample."""
    if place.sensors is None:
        yield tell
        return
    from gpuledger.watching import watch

    number = place.sensors.index
    with (
        watch("campaign", gpus=[number], out=folder / f"campaign-{time.time_ns()}.ledger") as run,
        ExitStack() as open_,
    ):

        def told(progress: Progress) -> None:
            open_.close()
            open_.enter_context(run.window(f"{progress.done:05d} {progress.operator}"))
            if tell is not None:
                tell(progress)

        yield told


def _measure_with_ray(
    address: str,
    workloads: Sequence[Workload],
    book: Book,
    method: Method,
    how: dict[str, Any],
    workers: int,
    tell: Tell | None,
) -> None:
    from gpuledger.operators.campaign import run_campaign
    from gpuledger.operators.plan import lacking_for
    from gpuledger.operators.ray_crew import RayCrew, connected

    with connected(address) as ray:
        crew = RayCrew(ray, how["device"] or "cuda", method, workers=workers, force=how["force"])
        done = run_campaign(
            crew,
            book,
            lambda environment: lacking_for(workloads, book, environment, need_energy=method.energy),
            seed=method.seed,
            tell=tell,
            clock_ns=time.time_ns,
        )
    died = f", {done.deaths} workers died and came back" if done.deaths else ""
    print_notes([f"gpuledger: {done.measured} operators measured, {done.failed} failed{died}"])


def _compared(workloads: Sequence[Workload], book: Book, place: Place, method: Method) -> list[Pair]:
    from gpuledger.operators.again import step_of
    from gpuledger.operators.choose import cache_folder, shelf_of, sum_measured
    from gpuledger.operators.compare import Pair
    from gpuledger.operators.whole import measure_whole

    shelf = shelf_of(book, place.environment)
    return [
        Pair(
            workload.name,
            workload.mode,
            sum_measured(workload, shelf, cache_folder()),
            measure_whole(step_of(workload, place), place, method),
        )
        for workload in workloads
    ]


def _write(pairs: Sequence[Pair], place: Place, folder: Path, *, as_json: bool) -> None:
    """Print the comparison, and keep it in the folder as JSON and as a picture."""
    import json

    document = document_of(pairs, place.environment.to_json())
    (folder / "compare.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        print_lines([place.environment.card, *lines_of(pairs)])
    try:
        draw_pairs_into(pairs, folder / "compare.png", place.environment.card)
    except UsageError as error:  # matplotlib is an extra
        print_notes([f"gpuledger: no picture: {error.message}"])
