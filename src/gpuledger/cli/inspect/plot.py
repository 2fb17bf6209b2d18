"""``gpuledger plot``: runs as one picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import force_option, open_runs, output_option, print_notes, takes
from gpuledger.cli.inspect.keywords import bar_panels, keyword_options, read_asked
from gpuledger.cli.inspect.report import choose_file, echo_path, write_bytes
from gpuledger.errors import UsageError
from gpuledger.files.writing import write_whole
from gpuledger.services.grouping import GroupingRequest
from gpuledger.units import format_bytes, parse_frac

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpuledger.model.run import Run

LINES, TWO_BAR, CATEGORIES, LAYERS, BATCHES = "lines", "two-bar", "categories", "layers", "batches"
METRICS = ("memory", "power", "utilization", "clock")
DEFAULT_FILE = "plot.png"


@dataclass(frozen=True)
class PlotFlags:
    """What the line of ``plot`` says."""

    run_paths: tuple[str, ...]
    kind: str | None
    metric: str
    align: str
    baseline: str | None
    per: str
    keywords_texts: tuple[str, ...]
    reported_text: str | None
    min_share: str
    title: str
    output: str | None
    picture_format: str
    force: bool


@dataclass(frozen=True)
class Wanted:
    """What a picture is drawn by: what was said, and what its words mean."""

    flags: PlotFlags
    asked: GroupingRequest
    min_share_frac: float


@click.command(
    "plot",
    epilog="""\b
Examples:
  gpuledger plot memory_*.txt --align first-use -o memory.png
  gpuledger plot train.ledger --kind two-bar -o train.svg""",
)
@click.argument("run_paths", metavar="RUN…", nargs=-1, required=True)
@click.option(
    "--kind",
    type=click.Choice([LINES, TWO_BAR, CATEGORIES, LAYERS, BATCHES]),
    help="lines: values over time. two-bar, categories: memory at the peak. layers, batches: times of a time log.  "
    "[default: lines, or layers for a time log]",
)
@click.option(
    "--metric", type=click.Choice(METRICS), default="memory", show_default=True, help="Quantity to plot over time."
)
@click.option(
    "--align",
    type=click.Choice(["start", "first-use"]),
    default="start",
    show_default=True,
    help="Where time 0 is: at the first sample, or at the first use of memory.",
)
@click.option(
    "--baseline",
    type=click.Choice(["first", "none"]),
    help="Value to subtract: the first sample, or none.  [default: first for memory of the whole GPU, otherwise none]",
)
@click.option(
    "--per",
    type=click.Choice(["device", "process"]),
    default="device",
    show_default=True,
    help="Plot memory of the whole GPU, or of the program's processes only.",
)
@keyword_options()
@click.option(
    "--min-share",
    "min_share",
    metavar="SHARE",
    default="0%",
    show_default=True,
    help="Combine groups below this share of a bar, such as 2%.",
)
@click.option("--title", default="", metavar="TEXT", help="Title of the picture.  [default: the quantity shown]")
@output_option(
    "File to write: .png, .svg or .pdf; or a folder, for one picture per run, bars on a common scale.  "
    f"[default: {DEFAULT_FILE}]",
    "FILE|DIR/",
)
@click.option(
    "--format",
    "picture_format",
    type=click.Choice(["png", "svg", "pdf"]),
    default="png",
    show_default=True,
    help="Format of the pictures in a folder.",
)
@force_option()
@takes(PlotFlags)
def plot_command(flags: PlotFlags) -> None:
    """Plot one or more runs as a picture.

    Plots memory, power, utilization or clocks over time, memory at the peak as bars, or layer times of a time log. The
    same runs always give an identical file. The path is printed to stdout.

    RUN is a directory NAME.ledger, a folder of such directories, or a file that `gpuledger import` can read.
    """
    from gpuledger.report.plots.plot_style import own_settings, picture_bytes, picture_suffix

    wanted = Wanted(flags, read_asked(flags.keywords_texts, flags.reported_text), parse_frac(flags.min_share))
    if flags.output is not None and (flags.output.endswith("/") or Path(flags.output).is_dir()):
        with own_settings():
            _write_folder(Path(flags.output), open_runs(flags.run_paths), wanted)
        return
    place = choose_file(flags.output, DEFAULT_FILE, force=flags.force)
    suffix = picture_suffix(place)
    with own_settings():
        runs = open_runs(flags.run_paths)
        figure, notes = _KINDS[flags.kind or _default_kind(runs)](runs, wanted)
        written = write_bytes(place, picture_bytes(figure, suffix))
    echo_path(place)
    print_notes([*(f"gpuledger: {note}" for note in notes), f"gpuledger: wrote {place} ({format_bytes(written)})"])


def _write_folder(folder: Path, runs: Sequence[Run], wanted: Wanted) -> None:
    """Write a picture for each run; bars are drawn as they stand among all of them.

    Raises:
        UsageError: a file exists and may not be overwritten.
    """
    from gpuledger.report.plots.plot_style import picture_bytes

    names = [run.name for run in runs]
    seen = [names[:place].count(name) for place, name in enumerate(names)]
    ending = wanted.flags.picture_format
    places = [folder / f"{name}{f'-{n + 1}' if n else ''}.{ending}" for name, n in zip(names, seen, strict=True)]
    for place in places:
        choose_file(str(place), "", force=wanted.flags.force)
    folder.mkdir(parents=True, exist_ok=True)
    for place, figure in zip(places, _one_by_one(runs, wanted), strict=True):
        write_whole(place, picture_bytes(figure, place.suffix))
        click.echo(place)
    print_notes([f"gpuledger: wrote {len(places)} pictures to {folder}"])


def _one_by_one(runs: Sequence[Run], wanted: Wanted) -> Iterator[Figure]:
    """Yield the picture of each run."""
    from gpuledger.report.plots.bar_plot import KINDS, draw_bars

    kind, title = wanted.flags.kind or _default_kind(runs), wanted.flags.title
    if kind not in KINDS:
        for run in runs:
            yield _KINDS[kind]([run], wanted)[0]
        return
    panels = [bar_panels(run, wanted.asked) for run in runs]
    among = [panel for own in panels for panel in own]
    for own in panels:
        yield draw_bars(own, kind, title=title, min_share_frac=wanted.min_share_frac, among=among)


def _default_kind(runs: Sequence[Run]) -> str:
    from gpuledger.analyze.step.time_logs import is_time_log

    return LAYERS if all(is_time_log(run) for run in runs) else LINES


def _draw_lines(runs: Sequence[Run], wanted: Wanted) -> tuple[Figure, list[str]]:
    from gpuledger.analyze.samples.series import build_series
    from gpuledger.report.plots.line_plot import Framing, draw_lines

    flags = wanted.flags
    series, notes = build_series(runs, flags.metric, align=flags.align, baseline=flags.baseline, per=flags.per)
    return draw_lines(series, Framing(flags.metric, flags.align, flags.title)), notes


def _draw_bars(kind: str) -> Callable[[Sequence[Run], Wanted], tuple[Figure, list[str]]]:
    def draw(runs: Sequence[Run], wanted: Wanted) -> tuple[Figure, list[str]]:
        from gpuledger.report.plots.bar_plot import draw_bars

        panels = [panel for run in runs for panel in bar_panels(run, wanted.asked)]
        return draw_bars(panels, kind, title=wanted.flags.title, min_share_frac=wanted.min_share_frac), []

    return draw


def _draw_times(kind: str) -> Callable[[Sequence[Run], Wanted], tuple[Figure, list[str]]]:
    def draw(runs: Sequence[Run], wanted: Wanted) -> tuple[Figure, list[str]]:
        from gpuledger.analyze.step.time_logs import read_time_log
        from gpuledger.report.plots.time_plot import draw_batches, draw_layers

        if len(runs) > 1:
            raise UsageError(f"--kind {kind}: takes one time log, not {len(runs)}", hint="Plot each time log by itself")
        log = read_time_log(runs[0])
        return (draw_layers if kind == LAYERS else draw_batches)(log, wanted.flags.title), []

    return draw


_KINDS: dict[str, Callable[[Sequence[Run], Wanted], tuple[Any, list[str]]]] = {
    LINES: _draw_lines,
    TWO_BAR: _draw_bars(TWO_BAR),
    CATEGORIES: _draw_bars(CATEGORIES),
    LAYERS: _draw_times(LAYERS),
    BATCHES: _draw_times(BATCHES),
}
