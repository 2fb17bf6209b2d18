"""One command in several variants, each started from an idle GPU, and compared at the end."""

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
"""How a command ends after Ctrl-C: by the signal, or as shells tell it."""

Number = TypeVar("Number", int, float)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*", re.ASCII)


@dataclass(frozen=True)
class Variant:
    """One command to run: its name, which is its run's, and its words; ``of`` is the name all its repeats share."""

    name: str
    command: tuple[str, ...]
    of: str = ""


@dataclass(frozen=True)
class Reading:
    """A GPU at one moment, by its number; None is what it does not tell."""

    index: int
    used_bytes: int | None
    power_w: float | None


@dataclass(frozen=True)
class Tools:
    """What the runner needs of the world. Tests give their own.

    ``watch`` runs a command, records it into a directory that is not there yet, and returns its status, negative for a
    signal. ``read_cards`` returns a reading of every GPU that is watched.
    """

    watch: Callable[[tuple[str, ...], Path], int]
    read_cards: Callable[[], Sequence[Reading]]
    say: Callable[[str], None]
    clock_s: Callable[[], float] = time.monotonic
    sleep_s: Callable[[float], None] = time.sleep


def parse_variants(text: str | None) -> list[tuple[str, str]]:
    """Return name and value of each variant of ``a=A,b=B``; a name alone is its own value.

    Raises:
        UsageError: a name is empty, cannot be a file's, or comes twice.
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
        UsageError: it has no name or no values, or a name comes twice.
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
    """Return every combination of ``variants`` and ``vary``, the whole round ``repeat`` times.

    ``{variant}`` in the command becomes a variant's value, ``{batch}`` that of ``--vary batch=…``; other braces stay.

    Raises:
        UsageError: what is varied is not in the command.
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
    """Return the folder the runs go to; nothing is created or removed.

    Raises:
        UsageError: a run or the plots are there and ``force`` is not given.
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
    """How each variant ended: its exit status, negative for a signal, by name; ``recorded`` are those that left a run.

    A variant whose command did not start leaves the run of an earlier time as it is, which is not one of these.
    """

    folder: Path
    statuses: Mapping[str, int]
    recorded: tuple[str, ...]

    @property
    def failed(self) -> dict[str, int]:
        """Return the statuses of those that did not end with 0."""
        return {name: status for name, status in self.statuses.items() if status}

    @property
    def exit_code(self) -> int:
        """Return 0 where all ended with 0, 1 where one did not, 130 after Ctrl-C."""
        failed = set(self.failed.values())
        return INTERRUPTED if set(INTERRUPTED_STATUSES) & failed else 1 if failed else 0


def run_variants(variants: Sequence[Variant], folder: Path, tools: Tools) -> VariantsResult:
    """Return how all ended, after running one after the other into ``folder``.

    Each begins when memory and power are back where they were before the first; a GPU that does not come back in time
    is named, and noted in the run. One that fails is kept, and the others go on.
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
    """What the GPUs were like before the first variant: the lowest readings of a second."""

    cards: tuple[Reading, ...]

    SEEN_S = 1.0
    EVERY_S = 0.1
    LONGEST_S = 60.0
    MORE_BYTES = 16 << 20
    MORE_POWER_FRAC = 0.10
    MORE_POWER_W = 3.0

    @classmethod
    def seen(cls, tools: Tools) -> Idle:
        """Return the lowest of each GPU's readings over a second."""
        until = tools.clock_s() + cls.SEEN_S
        lowest = list(tools.read_cards())
        while tools.clock_s() < until:
            tools.sleep_s(cls.EVERY_S)
            lowest = [_lower(low, now) for low, now in zip(lowest, tools.read_cards(), strict=True)]
        return cls(tuple(lowest))

    def wait(self, tools: Tools) -> str:
        """Return "" once every GPU is idle again, else what is not after the longest wait."""
        begun = tools.clock_s()
        while True:
            problem = self._problem(tools.read_cards())
            if not problem or tools.clock_s() - begun >= self.LONGEST_S:
                return (
                    f"started although the GPU was not idle after {self.LONGEST_S:.0f} s: {problem}" if problem else ""
                )
            tools.sleep_s(self.EVERY_S)

    def _problem(self, cards: Sequence[Reading]) -> str:
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


def _lower(low: Reading, now: Reading) -> Reading:
    return Reading(low.index, _lowest(low.used_bytes, now.used_bytes), _lowest(low.power_w, now.power_w))


def _lowest(*values: Number | None) -> Number | None:
    return min((value for value in values if value is not None), default=None)


def keep_repeat(place: Path, repeat_of: str, series_ns: int, late: str = "") -> None:
    """Keep in a run's manifest which variant it is a run of, and a note where it began late."""
    from gpuledger.model.manifest import with_notes
    from gpuledger.model.run_directory import MANIFEST
    from gpuledger.model.run_manifest import read_run_manifest, write_run_manifest

    if (place / MANIFEST).is_file():
        manifest = with_notes(read_run_manifest(place), *([f"{late[:1].upper()}{late[1:]}."] if late else []))
        write_run_manifest(place, replace(manifest, repeat_of=repeat_of, series_ns=series_ns))


@dataclass(frozen=True)
class Compared:
    """What came of comparing the runs: None where there was nothing to compare, and sentences for the user."""

    comparison: Comparison | None
    pictures: tuple[Path, ...]
    problems: tuple[str, ...]


def compare_variants(result: VariantsResult) -> Compared:
    """Return the comparison of the recorded runs, after writing its tables and pictures into the folder's plots."""
    from gpuledger.analyze.compare.compare import compare
    from gpuledger.report.text.compare_table import comparison_csv, comparison_markdown

    runs, problems = _runs(result)
    try:
        comparison = compare(runs)
    except GpuLedgerError as error:
        return Compared(None, (), (*problems, f"nothing to compare: {error.message}"))
    plots = result.folder / PLOTS
    plots.mkdir(exist_ok=True)
    write_whole(plots / "compared.md", comparison_markdown(comparison).encode())
    write_whole(plots / "compared.csv", comparison_csv(comparison).encode())
    pictures, refusal = _draw(runs, plots)
    return Compared(comparison, pictures, (*problems, *comparison.notes, *refusal))


def _runs(result: VariantsResult) -> tuple[list[Run], list[str]]:
    """Return the runs that can be read, and why others cannot."""
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
    """Draw memory and power, where there are readings and matplotlib; return the files, and why there are none."""
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
