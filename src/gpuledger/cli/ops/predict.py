"""``gpuledger ops predict``: a model's time and energy on a GPU, measured or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import gpu_option, json_option, print_json, print_lines
from gpuledger.cli.ops.common import (
    fit_bar,
    input_option,
    print_remarks,
    read_database_option,
    table_lines,
    train_option,
)
from gpuledger.cli.ops.predict_modules import is_run, module_lines, print_run_modules
from gpuledger.errors import UsageError
from gpuledger.services.sums import BATCH, capture_named, is_workload, open_workload
from gpuledger.units import DASH, counted, format_frac, format_joules, format_ns

if TYPE_CHECKING:
    from gpuledger.ops.predict.forecast import Forecast
    from gpuledger.ops.workloads.workload import Workload

WARNINGS_SHOWN = 5
MOST_BATCHES = 32


@click.command(
    "predict",
    epilog="""\b
Examples:
  gpuledger ops predict torchvision:resnet50 --gpu h200 --batch 1:64
  gpuledger ops predict train.ledger --gpu a100-80gb --by module""",
)
@click.argument("model", metavar="MODEL|WORKLOAD|RUN")
@read_database_option()
@gpu_option("GPU model, in the database or listed by `gpuledger gpus`.  [default: the GPU measured last]")
@click.option("--batch", "batches", metavar="N|A:B", help="Batch size; A:B doubles it from A to B.  [default: 32]")
@input_option()
@train_option()
@click.option("--by", type=click.Choice(["module"]), help="Show a row for each module.")
@json_option()
def predict_command(
    model: str,
    database_url: str | None,
    gpu: str | None,
    batches: str | None,
    inputs: tuple[str, ...],
    train: bool,
    by: str | None,
    as_json: bool,
) -> None:
    """Predict time and energy of a model on a given GPU.

    GPU time is that of the operators, CPU time is what an eager step takes to launch them, and an eager step takes the
    longer of both. CPU time is predicted for one machine, which a note names, unless it was measured on the model.

    Values have a 90 % prediction interval. Operators that were measured on this GPU are taken from the database; the
    others are predicted. For a GPU without measurements, all are predicted from another GPU and the data sheets of
    both, and a note says so.

    For a recorded run, --gpu and --by module are needed, and no database: the time of each kernel is scaled by the data
    sheets of both GPUs.
    """
    if is_run(model):
        if gpu is None or by is None:
            raise UsageError(f"predict {model}: a recorded run", hint="Add --gpu NAME --by module")
        print_run_modules(model, gpu, as_json=as_json)
        return
    from gpuledger.ops.database.shipped import open_or_shipped, shipped_notes
    from gpuledger.ops.predict.choose import cache_folder, captured_on, is_gpu, predictor_for, roof_of_records
    from gpuledger.ops.predict.forecast import forecast
    from gpuledger.ops.predict.modules import modules_of_lines

    predictor, shelf, of_gpu = predictor_for(open_or_shipped(database_url), gpu, cache_folder(), fit_bar)
    shipped = (*shipped_notes(database_url), *of_gpu)
    roof = predictor.roof if of_gpu else roof_of_records(shelf)
    found = [
        (batch, forecast(workload, predictor, shelf, roof, is_measured=not of_gpu))
        for batch, workload in _workloads(model, batches, inputs, (gpu, captured_on(shelf.environment)), train=train)
    ]
    notes = (*shipped, *host_notes([one for _, one in found], is_on_gpu=is_gpu(shelf.environment)))
    if as_json:
        documents = [_document(batch, one, notes) for batch, one in found]
        if by is not None:
            for document, (_, one) in zip(documents, found, strict=True):
                document["modules"] = [vars(module) for module in modules_of_lines(one.total.lines)]
        print_json(documents)
        return
    print_lines(_lines(roof.card, found))
    if by is not None:
        for _, one in found:
            print_lines(["", *module_lines(modules_of_lines(one.total.lines))])
    warnings = list(dict.fromkeys(text for _, one in found for text in one.warnings))
    shown = [*notes, *warnings[:WARNINGS_SHOWN]]
    if len(warnings) > WARNINGS_SHOWN:
        shown.append(f"{counted(len(warnings) - WARNINGS_SHOWN, 'more note')}: --json prints them.")
    print_remarks(shown)


def _workloads(
    model: str, batches: str | None, inputs: tuple[str, ...], cards: tuple[str | None, ...], *, train: bool
) -> list[tuple[int | str | None, Workload]]:
    """Return the workload in a file, or a model's captured now at each batch size or shape, for a simulated GPU."""
    if is_workload(model):
        if batches is not None or inputs:
            option = f"--input {inputs[0]}" if batches is None else f"--batch {batches}"
            raise UsageError(
                f"{option}: {model} is a workload file with a fixed batch size",
                hint="Leave the option out, or give the name of a model",
            )
        return [(None, open_workload(model))]
    if inputs and batches is not None:
        raise UsageError(
            f"--batch {batches} and --input {inputs[0]}: the shape has the batch size", hint="Give one of them"
        )
    if inputs:
        return [(shape, capture_named(model, BATCH, cards, train=train, inputs=shape)) for shape in inputs]
    return [(batch, capture_named(model, batch, cards, train=train)) for batch in parse_batches(batches or "32")]


def parse_batches(text: str) -> list[int]:
    """Return the batches that ``32``, ``1,8`` or ``1:64`` (doubling) name.

    Raises:
        UsageError: it names none.
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        if not first.isdecimal() or int(first) < 1 or (colon and (not last.isdecimal() or int(last) < int(first))):
            raise UsageError(
                f"--batch {text}: not a batch size", hint="Use a number, a list such as 1,8, or a range such as 1:64"
            )
        size = int(first)
        while size <= int(last or first):
            sizes.append(size)
            size *= 2
    if len(sizes) > MOST_BATCHES:
        raise UsageError(f"--batch {text}: {len(sizes)} sizes, at most {MOST_BATCHES}")
    return sizes


def _lines(card: str, found: Sequence[tuple[int | str | None, Forecast]]) -> list[str]:
    from gpuledger.report.base.terminal import TextColumn, printable

    size = "input" if isinstance(found[0][0], str) else "batch"
    is_eager = any(one.host is not None for _, one in found)
    eager = ("CPU time", "eager step") if is_eager else ()
    columns = (
        TextColumn(size, right=True, optional=1),
        TextColumn("GPU time" if is_eager else "time", right=True),
        TextColumn("90 % interval", right=True, optional=2),
        *(TextColumn(title, right=True, optional=3 if title == "CPU time" else 0) for title in eager),
        TextColumn("energy", right=True),
        TextColumn("90 % interval", right=True, optional=4),
        TextColumn("time measured", right=True, optional=5),
    )
    rows = tuple(
        (
            "" if batch is None else printable(batch) if isinstance(batch, str) else f"{batch:,}",
            format_ns(one.total.gpu_ns if is_eager else one.total.step_ns),
            _range(one.low_ns, one.high_ns, format_ns),
            *(_eager_cells(one) if is_eager else ()),
            DASH if one.total.energy_j is None else format_joules(one.total.energy_j),
            _range(one.low_j, one.high_j, format_joules),
            format_frac(one.total.time_frac),
        )
        for batch, one in found
    )
    first = found[0][1].total.workload
    model = printable(first.name.partition(f"-{first.mode}")[0])
    return [f"{model} ({first.mode}) on {card}", *table_lines(columns, rows)]


def _range(low: float | None, high: float | None, written: Callable[[float], str]) -> str:
    return "" if low is None or high is None else f"{written(low)} – {written(high)}"


def _eager_cells(one: Forecast) -> tuple[str, str]:
    """Return CPU time and eager step; with ``>`` if only the launches are known, because both are longer."""
    if one.host is None:
        return DASH, DASH
    least = "> " if one.host_source == "launches" else ""
    return f"{least}{format_ns(one.host.time_ns)}", f"{least}{format_ns(one.total.step_ns)}"


def host_notes(found: Sequence[Forecast], *, is_on_gpu: bool) -> list[str]:
    """Return notes about the CPU times of forecasts: the machine that they are of, and where the CPU limits a step."""
    from gpuledger.ops.totals.predicted_host import fitted_times, is_like_fitted

    notes = []
    if any(one.host_source == "predicted" for one in found):
        times = fitted_times()
        notes.append(
            f"CPU time is predicted for an {times.machine}: 90 % of its steps take {times.low_frac:.2f} to "
            f"{times.high_frac:.2f} times as long, and other CPUs can be twice as fast or slow."
        )
    if any(one.host_source == "launches" for one in found):
        notes.append(
            "CPU time is that of the launches only, without Python code of modules: an eager step takes longer"
        )
    unlike = [one for one in found if one.host_source != "measured" and not is_like_fitted(one.total.workload)]
    if unlike and is_on_gpu:
        calls = f": launching its {unlike[0].total.workload.calls:,} operators can take longer than the GPU time"
        notes.append(
            "the CPU time of this training is not predicted, because only convolutional networks without autocast were "
            f"measured{calls if unlike[0].host is None else ''}"
        )
    limited = [one for one in found if one.is_limited_by_cpu]
    if limited:
        notes.append(
            "the CPU limits the eager step"
            + ("" if len(limited) == len(found) else f" in {len(limited)} of {len(found)} rows")
            + ": as a CUDA graph, the step takes about the GPU time"
        )
    return notes


def _document(batch: int | str | None, one: Forecast, notes: Sequence[str]) -> dict[str, Any]:
    total = one.total
    return {
        "workload": total.workload.name,
        "mode": total.workload.mode,
        "batch": batch if isinstance(batch, int) else None,
        "gpu": total.environment.title if total.environment is not None else None,
        "time_ns": total.step_ns if one.host is None else total.gpu_ns,
        "time_low_ns": one.low_ns,
        "time_high_ns": one.high_ns,
        "cpu_time_ns": None if one.host is None else one.host.time_ns,
        "cpu_time_low_ns": None if one.host is None else one.host.low_ns,
        "cpu_time_high_ns": None if one.host is None else one.host.high_ns,
        "cpu_time_source": one.host_source,
        "eager_step_ns": None if one.host is None else total.step_ns,
        "eager_step_low_ns": None if one.host is None else one.step_low_ns,
        "eager_step_high_ns": None if one.host is None else one.step_high_ns,
        "energy_j": total.energy_j,
        "energy_low_j": one.low_j,
        "energy_high_j": one.high_j,
        "time_measured_frac": total.time_frac,
        "notes": list(notes),
        "warnings": list(one.warnings),
    }
