"""Run a command in several variants, each started when the GPUs are idle, and compare them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.files.writing import write_whole

if TYPE_CHECKING:
    from gpuledger.analyze.compare.compare import Comparison
    from gpuledger.model.run import Run

VARIANT = "variant"
PLOTS = "plots"
INTERRUPTED = 130
INTERRUPTED_STATUSES = (-2, INTERRUPTED)
"""Exit statuses after Ctrl-C: by the signal, or as shells report it."""

Number = TypeVar("Number", int, float)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*", re.ASCII)


@dataclass(frozen=True)
class Variant:
    """One command to run, with its arguments and the name of its run. ``of`` is the common name of its repeats."""

    name: str
    command: tuple[str, ...]
    of: str = ""


@dataclass(frozen=True)
class CardSample:
    """One sample of a GPU by number; values that it does not report are None."""

    index: int
    used_bytes: int | None
    power_w: float | None


@dataclass(frozen=True)
class Tools:
    """Functions that the runner calls. Tests replace them.

    ``watch`` runs a command, records it into a new directory, and returns its exit status, negative for a signal.
    ``read_cards`` returns one sample of every watched GPU.
    """

    watch: Callable[[tuple[str, ...], Path], int]
    read_cards: Callable[[], Sequence[CardSample]]
    say: Callable[[str], None]
    clock_s: Callable[[], float] = time.monotonic
    sleep_s: Callable[[float], None] = time.sleep


def parse_variants(text: str | None) -> list[tuple[str, str]]:
    """Return name and value of each variant in ``a=A,b=B``. A name without a value is also its value.

    Raises:
        UsageError: a name is empty, is not a valid file name, or occurs twice.
    """
    if text is None:
        return []
    pairs = [part.partition("=") for part in text.split(",")]
    found = [(name.strip(), value if sign else name.strip()) for name, sign, value in pairs]
    _refuse_names([name for name, _ in found], f"--variants {text}", "direct=DIRECT,fft=FFT")
    return found


def parse_vary(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each ``batch=1,2,4``.

    Raises:
        UsageError: it has no name or no values, or a name occurs twice.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        listed = [value.strip() for value in values.split(",")]
        if not name.isidentifier() or name in (*found, VARIANT) or not all(listed):
            raise UsageError(
                f"--vary {text}: expected NAME=VALUE,VALUE and each name once", hint="For example --vary batch=1,2,4,8"
            )
        _refuse_names(listed, f"--vary {text}", "batch=1,2,4,8")
        found[name] = listed
    return found


def _refuse_names(names: Sequence[str], place: str, example: str) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{place}: {name!r} cannot be used in a run's name",
                hint=f"Use letters, digits and ._+=- only, for example {example}",
            )
        if names.count(name) > 1:
            raise UsageError(f"{place}: {name} is given twice")


def make_variants(
    command: Sequence[str], variants: Sequence[tuple[str, str]], vary: Mapping[str, Sequence[str]], repeat: int
) -> list[Variant]:
    """Return every combination of ``variants`` and ``vary``; the whole list ``repeat`` times.

    ``{variant}`` in the command is replaced by a variant's value, ``{batch}`` by that of ``--vary batch=…``. Other
    braces are not changed.

    Raises:
        UsageError: a placeholder is missing from the command.
    """
    names = [*([VARIANT] if variants else []), *vary]
    for name in names:
        if not any(f"{{{name}}}" in word for word in command):
            raise UsageError(
                f"{{{name}}} is not in the command", hint=f"Write {{{name}}} in the command where its value goes"
            )
    axes = [[(name, value, name) for name, value in variants]] if variants else []
    axes += [[(f"{axis}{value}", value, axis) for value in values] for axis, values in vary.items()]
    found = []
    for turn in range(1, repeat + 1):
        for chosen in product(*axes):
            values = dict(zip(names, (value for _, value, _ in chosen), strict=True))
            name = "-".join(part for part, _, _ in chosen)
            words = tuple(_filled(word, values) for word in command)
            numbered = f"{name}-r{turn}" if name else f"r{turn}"
            found.append(Variant(numbered if repeat > 1 else name or "run", words, name or "run"))
    return found


def _filled(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), word)


def choose_folder(out: str | None, variants: Sequence[Variant], *, force: bool) -> Path:
    """Return the folder of the runs. Creates and removes nothing.

    Raises:
        UsageError: a run or the plots exist and ``force`` is not given.
    """
    from gpuledger.model.run_directory import SUFFIX, choose_directory

    number = 1
    folder = Path(out or "variants")
    while out is None and folder.exists():
        number += 1
        folder = Path(f"variants-{number}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: not a directory", hint="Choose another directory with --out")
    if (folder / PLOTS).exists() and not force:
        raise UsageError(
            f"{folder / PLOTS}: already exists",
            hint="Choose another directory with --out, or overwrite it with --force",
        )
    for variant in variants:
        choose_directory(str(folder / f"{variant.name}{SUFFIX}"), force=force, stem=variant.name)
    return folder


@dataclass(frozen=True)
class VariantsResult:
    """Exit status of each variant by name, negative for a signal. ``recorded`` are the variants with a new run.

    If a variant's command did not start, an earlier run of that name is kept and does not count as recorded.
    """

    folder: Path
    statuses: Mapping[str, int]
    recorded: tuple[str, ...]

    @property
    def failed(self) -> dict[str, int]:
        """Return name -> exit status of the variants that failed."""
        return {name: status for name, status in self.statuses.items() if status}

    @property
    def exit_code(self) -> int:
        """Return 0 if all succeeded, 1 if one failed, 130 after Ctrl-C."""
        failed = set(self.failed.values())
        return INTERRUPTED if set(INTERRUPTED_STATUSES) & failed else 1 if failed else 0


def run_variants(variants: Sequence[Variant], folder: Path, tools: Tools) -> VariantsResult:
    """Return the results after running the variants one after the other into ``folder``.

    Each starts when memory and power of the GPUs are as low as before the first variant. If a GPU is not idle in time,
    that is printed and noted in the run. If a variant fails, its run is kept and the others still run.
    """
    from gpuledger.model.run_directory import SUFFIX
    from gpuledger.model.run_writer import find_run_id

    folder.mkdir(parents=True, exist_ok=True)
    idle = Idle.seen(tools)
    series = time.time_ns()
    statuses: dict[str, int] = {}
    recorded: list[str] = []
    for number, variant in enumerate(variants, 1):
        late = idle.wait(tools)
        tools.say(f"gpuledger: {number} of {len(variants)}: {variant.name}")
        place = folder / f"{variant.name}{SUFFIX}"
        replaced = find_run_id(place)
        status = statuses[variant.name] = tools.watch(variant.command, place)
        if late:
            tools.say(f"gpuledger: {variant.name}: {late}")
        if replaced is None or find_run_id(place) != replaced:
            recorded.append(variant.name)
            keep_repeat(place, variant.of or variant.name, series, late)
        if status in INTERRUPTED_STATUSES:
            tools.say(f"gpuledger: interrupted: {len(variants) - number} of {len(variants)} variants were not run")
            break
    return VariantsResult(folder, statuses, tuple(recorded))


@dataclass(frozen=True)
class Idle:
    """Idle memory and power of the GPUs: the lowest samples of one second before the first variant."""

    cards: tuple[CardSample, ...]

    SEEN_S = 1.0
    EVERY_S = 0.1
    LONGEST_S = 60.0
    MORE_BYTES = 16 << 20
    MORE_POWER_FRAC = 0.10
    MORE_POWER_W = 3.0

    @classmethod
    def seen(cls, tools: Tools) -> Idle:
        """Return each GPU's lowest samples within one second."""
        until = tools.clock_s() + cls.SEEN_S
        lowest = list(tools.read_cards())
        while tools.clock_s() < until:
            tools.sleep_s(cls.EVERY_S)
            lowest = [_lower(low, now) for low, now in zip(lowest, tools.read_cards(), strict=True)]
        return cls(tuple(lowest))

    def wait(self, tools: Tools) -> str:
        """Wait until every GPU is idle. Return "" then, or which GPU is not idle after the time limit."""
        begun = tools.clock_s()
        while True:
            problem = self._problem(tools.read_cards())
            if not problem or tools.clock_s() - begun >= self.LONGEST_S:
                return (
                    f"started although the GPU was not idle after {self.LONGEST_S:.0f} s: {problem}" if problem else ""
                )
            tools.sleep_s(self.EVERY_S)

    def _problem(self, cards: Sequence[CardSample]) -> str:
        from gpuledger.units import format_bytes

        for low, now in zip(self.cards, cards, strict=True):
            if low.used_bytes is not None:
                if now.used_bytes is None:
                    return f"GPU {now.index} no longer reports its memory in use"
                more_bytes = now.used_bytes - low.used_bytes
                if more_bytes > self.MORE_BYTES:
                    return f"GPU {now.index} uses {format_bytes(more_bytes)} more memory than before the first variant"
            if low.power_w is None or now.power_w is None:
                continue
            if now.power_w > low.power_w * (1 + self.MORE_POWER_FRAC) + self.MORE_POWER_W:
                earlier = f"compared with {low.power_w:.0f} W before the first variant"
                return f"GPU {now.index} draws {now.power_w:.0f} W, {earlier}"
        return ""


def _lower(low: CardSample, now: CardSample) -> CardSample:
    return CardSample(low.index, _lowest(low.used_bytes, now.used_bytes), _lowest(low.power_w, now.power_w))


def _lowest(*values: Number | None) -> Number | None:
    return min((value for value in values if value is not None), default=None)


def keep_repeat(place: Path, repeat_of: str, series_ns: int, late: str = "") -> None:
    """Write a run's variant into its manifest, with a note if a GPU was not idle."""
    from gpuledger.model.manifest import with_notes
    from gpuledger.model.run_directory import MANIFEST
    from gpuledger.model.run_manifest import read_run_manifest, write_run_manifest

    if (place / MANIFEST).is_file():
        manifest = with_notes(read_run_manifest(place), *([f"{late[:1].upper()}{late[1:]}."] if late else []))
        write_run_manifest(place, replace(manifest, repeat_of=repeat_of, series_ns=series_ns))


@dataclass(frozen=True)
class VariantComparison:
    """The comparison of the runs, None if there was nothing to compare, and notes for the user."""

    comparison: Comparison | None
    pictures: tuple[Path, ...]
    problems: tuple[str, ...]


def compare_variants(result: VariantsResult) -> VariantComparison:
    """Return the comparison of the recorded runs. Writes tables and pictures into the folder ``plots``."""
    from gpuledger.analyze.compare.compare import compare
    from gpuledger.report.text.compare_table import comparison_csv, comparison_markdown

    runs, problems = _runs(result)
    try:
        comparison = compare(runs)
    except GpuLedgerError as error:
        return VariantComparison(None, (), (*problems, f"nothing to compare: {error.message}"))
    plots = result.folder / PLOTS
    plots.mkdir(exist_ok=True)
    write_whole(plots / "compared.md", comparison_markdown(comparison).encode())
    write_whole(plots / "compared.csv", comparison_csv(comparison).encode())
    pictures, refusal = _draw(runs, plots)
    return VariantComparison(comparison, pictures, (*problems, *comparison.notes, *refusal))


def _runs(result: VariantsResult) -> tuple[list[Run], list[str]]:
    """Return the readable runs, and the errors of the others."""
    from gpuledger.model.run_directory import SUFFIX
    from gpuledger.services.runs import load

    runs, problems = [], []
    for name in result.recorded:
        try:
            runs.append(load(result.folder / f"{name}{SUFFIX}"))
        except GpuLedgerError as error:
            problems.append(f"{name}: no run was written: {error.message}")
    return runs, problems


def _draw(runs: Sequence[Run], plots: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Draw memory and power if there are samples and matplotlib. Return the files, and notes if there are none."""
    from gpuledger.analyze.samples.series import build_series
    from gpuledger.errors import EmptyRunError
    from gpuledger.report.plots.line_plot import Framing, draw_lines
    from gpuledger.report.plots.plot_style import own_settings, picture_bytes

    drawn: list[Path] = []
    for metric in ("memory", "power"):
        place = plots / f"{metric}.png"
        try:
            with own_settings():
                series, _ = build_series(runs, metric, align="first-use")
                write_whole(place, picture_bytes(draw_lines(series, Framing(metric, "first-use")), place.suffix))
        except EmptyRunError:
            continue
        except UsageError as error:
            return tuple(drawn), (error.message + (f"; {error.hint}" if error.hint else ""),)
        drawn.append(place)
    return tuple(drawn), ()
