"""``gpuledger ops sum``: a workload's time and energy, added up from the book."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import gpu_option, json_option, print_json, print_lines, print_notes, rows_option
from gpuledger.cli.ops.common import (
    book_option,
    capture_named,
    is_workload,
    open_workload,
    print_safe,
    say_note,
    table_lines,
    train_option,
)
from gpuledger.cli.ops.measure import energy_share_of, measuring_options, method_of, parse_share, progress_bar
from gpuledger.errors import BudgetExceededError, UsageError
from gpuledger.units import counted, format_frac, format_joules, format_ns

if TYPE_CHECKING:
    from gpuledger.ops.predict.choose import Shelf
    from gpuledger.ops.totals.coverage import Coverage
    from gpuledger.ops.totals.sum import Sum
    from gpuledger.ops.totals.type_totals import TypeTotal
    from gpuledger.ops.workloads.workload import Workload

NEXT_SHOWN = 10
ROWS = 20
BATCH = 32


class _Asked:
    """A workload's file, or a model by name with its batch and mode: a bare name is torchvision's, as elsewhere.

    Raises:
        UsageError: a batch or a mode for a workload, which has its own.
    """

    def __init__(self, text: str, batch: int | None, train: bool) -> None:
        self._text, self._batch, self._train = text, batch, train
        is_model = ":" in text or text.partition("?")[0].isidentifier()
        self._file = open_workload(text) if is_workload(text) or not is_model else None
        if self._file is not None and (batch is not None or train):
            option = "--train" if batch is None else f"--batch {batch}"
            raise UsageError(f"{option}: {text} is a workload of its own batch and mode", hint="give a model's name")

    def workload(self, card: str) -> Workload:
        """Return it, for one kind of card."""
        if self._file is not None:
            return self._file
        return capture_named(self._text, self._batch or BATCH, (card,), train=self._train)


@dataclass(frozen=True)
class Summed:
    """One workload: its sum over what was asked for, and how much of all of it that is."""

    workload: Workload
    total: Sum
    coverage: Coverage
    chosen: frozenset[str] | None


@click.command(
    "sum",
    short_help="Add up a workload's time and energy from the book.",
    epilog="""\b
Examples:
  gpuledger ops sum torchvision:resnet50 --batch 32
  gpuledger ops sum vit_b_16.workload.json --only conv2d,linear --target 90%""",
)
@click.argument("models", metavar="MODEL|WORKLOAD…", nargs=-1, required=True)
@book_option()
@gpu_option("A GPU that the book holds.  [default: the one measured last]")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Samples of a model by name.  [default: 32]")
@train_option()
@click.option("--only", metavar="TYPE,…", help="Only operators in layers of these types, or of these names.")
@click.option("--target", metavar="SHARE", help="Exit with 5 where less of time or energy is attributed.")
@click.option("--until-target", is_flag=True, help="Measure what is expected to add most until --target is met.")
@rows_option(ROWS)
@measuring_options()
@json_option()
def sum_command(
    models: tuple[str, ...],
    book_url: str,
    gpu: str | None,
    batch: int | None,
    train: bool,
    only: str | None,
    target: str | None,
    until_target: bool,
    rows: int,
    as_json: bool,
    **how: Any,
) -> None:
    """Add up a workload's milliseconds and joules, in all and by type of operator, each with its 95 % interval.

    What the book lacks is counted and left out. The share that is attributed is told against all operators, with
    those not measured predicted from the others. A model by name, such as torchvision:resnet50, is captured first.
    """
    target_frac = None if target is None else parse_share("--target", target)
    if until_target and target_frac is None:
        raise UsageError("sum: --until-target without --target", hint="--target 90% --until-target")
    asked = [_Asked(text, batch, train) for text in models]
    types = None if only is None else [name for name in only.split(",") if name.strip()]
    from gpuledger.ops.database.book import open_book, open_existing
    from gpuledger.ops.predict.choose import open_shelf

    if until_target and target_frac is not None:
        summed = _until_target(asked, open_book(book_url), types, target_frac, how)
    else:
        shelf = open_shelf(open_existing(book_url), gpu)
        workloads = [one.workload(shelf.environment.card) for one in asked]
        summed = _summed(workloads, shelf, [_chosen(one, types) for one in workloads])
    if as_json:
        print_json([_document(one) for one in summed])
    else:
        for place, one in enumerate(summed):
            print_safe([""] if place else [])
            _print(one, rows)
    if target_frac is not None:
        _hold(summed, target_frac)


def _chosen(workload: Workload, types: Sequence[str] | None) -> frozenset[str] | None:
    from gpuledger.ops.totals.coverage import digests_of_types

    return None if types is None else frozenset(digests_of_types(workload, types))


def _summed(workloads: Sequence[Workload], shelf: Shelf, chosen: Sequence[frozenset[str] | None]) -> list[Summed]:
    from gpuledger.ops.predict.choose import cache_folder, stand_in
    from gpuledger.ops.totals.coverage import cover
    from gpuledger.ops.totals.sum import sum_up

    predictor, _ = stand_in(shelf, cache_folder(), say_note)
    found = []
    for workload, wanted in zip(workloads, chosen, strict=True):
        total = sum_up(workload, shelf.records, shelf.environment, energy_predictor=predictor, only=wanted)
        everything = sum_up(workload, shelf.records, shelf.environment, predictor=predictor)
        found.append(Summed(workload, total, cover(everything, wanted), wanted))
    return found


def _until_target(
    asked: Sequence[_Asked], book: Any, types: Sequence[str] | None, target_frac: float, how: dict[str, Any]
) -> list[Summed]:
    """Measure the operators that are expected to add most, until every workload meets the target or none is left.

    Without types all that the book holds counts.
    """
    from gpuledger.ops.measure.fill import fill
    from gpuledger.ops.measure.place import find_place
    from gpuledger.ops.predict.choose import shelf_of

    place, method = find_place(how["device"], force=how["allow_busy"]), method_of(how)
    workloads = [one.workload(place.environment.card) for one in asked]
    chosen = [_chosen(one, types) or frozenset({_most_called(one)}) for one in workloads]
    while True:
        with progress_bar() as tell:
            for workload, digests in zip(workloads, chosen, strict=True):
                fill([workload], book, place, method, only=digests, tell=tell,
                     energy_share_frac=energy_share_of(how))  # fmt: skip
        wanted = _summed(
            workloads, shelf_of(book, place.environment), [None] * len(chosen) if types is None else chosen
        )
        more = [
            frozenset(following.line.use.key.digest for following in one.coverage.needed(target_frac)) - held
            for one, held in zip(wanted, chosen, strict=True)
        ]
        if not any(more):
            return wanted
        chosen = [held | added for held, added in zip(chosen, more, strict=True)]


def _most_called(workload: Workload) -> str:
    return max(workload.uses, key=lambda use: use.count).key.digest


def _hold(summed: Sequence[Summed], target_frac: float) -> None:
    """Name the next operators by expected gain, and fail, where a workload is below the target."""
    below = [one for one in summed if not one.coverage.meets(target_frac)]
    for one in below:
        lines = [f"gpuledger: {one.workload.name}: next, by expected gain:"]
        for following in one.coverage.needed(target_frac)[:NEXT_SHOWN]:
            energy = "" if following.energy_frac is None else f", {format_frac(following.energy_frac)} of the energy"
            use = following.line.use
            lines.append(f"  +{format_frac(following.time_frac)} of the time{energy}: {use.count} × {use.key.text}")
        print_notes(lines)
    if below:
        names = ", ".join(one.workload.name for one in below)
        raise BudgetExceededError(
            f"{names}: less than {format_frac(target_frac, 0)} attributed",
            hint="gpuledger ops measure WORKLOAD, or --until-target",
        )


def _print(one: Summed, rows: int) -> None:
    """Print one sum; what of its types is not shown is said."""
    from gpuledger.ops.totals.type_totals import by_type

    types = by_type(one.total)
    print_safe([*_head_lines(one), ""])
    print_lines(_type_lines(types[:rows]))
    if len(types) > rows:
        print_notes([f"gpuledger: {counted(len(types) - rows, 'more type')} of operators; -n or --json print them"])


def _head_lines(one: Summed) -> list[str]:
    total = one.total
    card = total.environment.card if total.environment is not None else ""
    energy = (
        "" if total.energy_j is None else f", {format_joules(total.energy_j)} ± {format_joules(total.energy_half_j)}"
    )
    time = f"{format_ns(total.step_ns)} ± {format_ns(total.busy_half_ns)}{energy}"
    return [
        f"{total.workload.name} on {card}: {time if total.calls_frac else 'nothing measured'}",
        _share_line(one),
        *_around_lines(total),
        *(f"note: {note}" for note in total.notes),
    ]


def _type_lines(types: Sequence[TypeTotal]) -> list[str]:
    from gpuledger.report.base.terminal import Column

    titles = ("operator", "calls", "distinct", "time", "±", "energy", "±", "unknown")
    columns = [Column(title, right=place > 0, shrinks=place == 0) for place, title in enumerate(titles)]
    cells = [
        (
            kind.operator,
            f"{kind.count:,}",
            f"{kind.distinct:,}",
            "-" if kind.time_ns is None else format_ns(kind.time_ns),
            "-" if kind.time_half_ns is None else format_ns(kind.time_half_ns),
            "-" if kind.energy_j is None else format_joules(kind.energy_j),
            "-" if kind.energy_half_j is None else format_joules(kind.energy_half_j),
            f"{kind.unknown:,}" if kind.unknown else "",
        )
        for kind in types
    ]
    return table_lines(columns, cells)


def _around_lines(total: Sum) -> list[str]:
    around = total.around
    if around is None:
        return []
    words = f"{around.module_calls:,} calls of modules, {around.autograd_nodes:,} autograd nodes"
    return [f"modules and autograd (host): {format_ns(around.time_ns)}: {words}"]


def _share_line(one: Summed) -> str:
    words = [f"attributed: {format_frac(one.total.calls_frac)} of the calls"]
    words.append(f"{format_frac(one.coverage.time_frac)} of the time")
    if one.coverage.energy_frac is not None:
        words.append(f"{format_frac(one.coverage.energy_frac)} of the energy")
    return ", ".join(words)


def _document(one: Summed) -> dict[str, Any]:
    from gpuledger.ops.totals.type_totals import by_type

    total, coverage = one.total, one.coverage
    return {
        "workload": total.workload.name,
        "mode": total.workload.mode,
        "environment": None if total.environment is None else total.environment.to_json(),
        "time_ns": total.step_ns,
        "busy_ns": total.busy_ns,
        "queued_ns": total.queued_ns,
        "host_ns": total.host_ns,
        "modules_and_autograd": None if total.around is None else vars(total.around),
        "half_interval_ns": total.busy_half_ns,
        "energy_j": total.energy_j,
        "half_interval_j": total.energy_half_j,
        "attributed": {
            "calls_frac": total.calls_frac,
            "time_frac": coverage.time_frac,
            "energy_frac": coverage.energy_frac,
        },
        "is_capped": total.is_capped,
        "notes": list(total.notes),
        "by_type": [vars(kind) for kind in by_type(total)],
        "next": [
            {
                "operator": following.line.use.key.to_json(),
                "count": following.line.use.count,
                "time_frac": following.time_frac,
                "energy_frac": following.energy_frac,
            }
            for following in coverage.following
        ],
    }
