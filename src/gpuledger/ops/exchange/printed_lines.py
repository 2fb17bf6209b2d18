"""Parse the lines printed by ml-operator-profiling's scripts. Pure: no layer is rebuilt and no torch is needed.

Its scripts print a layer, its input size and the figures in one line. For whole models, name and size are in an earlier
line. One file can contain the outputs of several scripts, with warnings of libraries between the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

LONGEST_LINE = 1 << 14
LARGEST = 1e12
"""Larger figures are damaged."""
OLD_VALUES, INFERENCE_VALUES, TRAINING_VALUES = 13, 14, 23
"""Number of values after the size: without the time's deviation; with it; with a second measurement of training.

The scripts of the last kind measured inference in evaluation mode; the others measured layers in training mode."""
CUT, WARNING, ERROR, OTHER = "row cut short", "a library's warning", "an error message", "not a line of these scripts"
NO_FIGURES, NO_NAME, NO_TIME = "no row follows", "row of a model without its name above it", "its time is no number"
SUM = "a sum of operators, which is no measurement"

_SIZE = r"[(\[]\d{1,12}(?:, \d{1,12})*,?[)\]]"
_ROW = re.compile(rf"(?P<what>[A-Z]\w*(?:\(.*\))?) (?P<size>{_SIZE}) (?P<rest>\S+(?: \S+)*)")
_LAYER_START = re.compile(r"[A-Z]\w*\(")
_LAYER = re.compile(r"[A-Z]\w*\(.*\)")
_NAME = re.compile(rf"(?P<name>[a-z]\w*) (?P<size>{_SIZE})")
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan")
_TEXT_FORM = re.compile(r"(\S+) \[ms\] (\S+) mJ (\S+) mJ (\S+) mJ")
_UNIT = re.compile(r"\S+ \[(?:ms|mJ)\]")
_IS_WARNING = re.compile(r"\S+\.py:\d+: \w*Warning:")
_DATASET = re.compile(r"datasets?_?(?P<kind>\w*)/dataset_history_(?P<hardware>\w+)/")
_HARDWARE = re.compile(r"(?P<gpu>[A-Za-z0-9]+?)(?P<off>_no_tc)?(?:_(?P<clock>\d{1,5})(?:_(?P<memory>\d{1,5}))?)?")
_IN_FILE_NAME = re.compile(r"(?:A30|RTX2080TI)(?:_no_tc)?(?:_\d{3,4}(?:_\d{3,4})?)?(?![0-9])", re.IGNORECASE)
_TRAINED = ("warmup complete ", "worked with grad")
_SPEECH = (
    *_TRAINED, "Dataset saved to ", "Loading dataset from ", "No dataset found", "done flag already set", "skipping ",
    "Elapsed time subprocess", "Latency, should be", "got to here", "CUDA Out of Memory Error",
)  # fmt: skip
_DATE = "%Y-%m-%d_%H-%M-%S"
_LAST_YEAR = 2261
"""The last year in which every time in ns fits in 64 bits."""

Mode = Literal["inference", "training"]


@dataclass(frozen=True)
class Hardware:
    """GPU configuration of a table; a setting is None if unknown."""

    tf32: bool | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


@dataclass(frozen=True)
class Figures:
    """One measurement; a figure is None if it is missing from the row."""

    time_s: float
    time_std_s: float | None = None
    energy_mj: float | None = None
    energy_std_mj: float | None = None
    power_w: float | None = None
    power_std_w: float | None = None
    iterations: int | None = None
    runtime_s: float | None = None


@dataclass(frozen=True)
class FileRow:
    """One row.

    Attributes:
        path, line: Location of the row.
        what: The printed layer, or the name of a whole model.
        size: Size of the input.
        figures: Measurement of one call.
        training: Measurement of one call and its backward pass, if the row contains it.
        is_evaluated: Whether the layer was in evaluation mode and without gradients.
        mode: Mode of a whole model; None for a layer.
        started_ns: Start of the measurement in Unix ns; None if unknown.
        hardware: The configuration, from other lines of the scripts or the file's name.
    """

    path: str
    line: int
    what: str
    size: tuple[int, ...]
    figures: Figures
    training: Figures | None = None
    is_evaluated: bool = False
    mode: Mode | None = None
    started_ns: int | None = None
    hardware: Hardware = field(default_factory=Hardware)


@dataclass(frozen=True)
class UnreadLine:
    """A line of a file that could not be read, and the reason."""

    path: str
    line: int
    reason: str
    text: str


def parse_lines(path: str, lines: Sequence[str]) -> tuple[list[FileRow], list[UnreadLine]]:
    """Return the rows in a file's lines, and the lines that could not be read; messages of scripts are neither."""
    reader = _Reader(path)
    for number, line in enumerate(lines, 1):
        reader.take(number, line)
    return reader.finish(hardware_of_file(path))


def hardware_of_file(path: str) -> Hardware:
    """Return the configuration in a file's name, for example ``finalbench_all_operations_A30_no_tc``."""
    found = _IN_FILE_NAME.search(re.split(r"[/\\]", path)[-1])
    return hardware_named(found[0]) if found else Hardware()


def hardware_named(name: str) -> Hardware:
    """Return the configuration in a script's name: ``A30_no_tc``, ``A30_900``, ``RTX2080TI_660_810``."""
    found = _HARDWARE.fullmatch(name)
    if not found:
        return Hardware()
    clock, memory = (None if found[part] is None else int(found[part]) for part in ("clock", "memory"))
    return Hardware(found["off"] is None, clock, memory)


class _Reader:
    """Parses lines one by one. Rows of whole models get their name from an earlier line."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows: list[FileRow] = []
        self.unread: list[UnreadLine] = []
        self._told = 0
        self._last: Hardware | None = None
        self._echo: tuple[int, str] | None = None
        self._model: tuple[int, str, tuple[int, ...], bool] | None = None
        self._mode: Mode = "training" if "train" in re.split(r"[/\\]", path)[-1] else "inference"
        self._said_mode: Mode | None = None
        self._numbers: list[float] = []

    def finish(self, of_file: Hardware) -> tuple[list[FileRow], list[UnreadLine]]:
        """Return all rows and unread lines."""
        self._close_model()
        self._close_echo()
        self._tell(self._last or of_file)
        return self.rows, sorted(self.unread, key=lambda one: one.line)

    def take(self, number: int, text: str) -> None:
        """Parse one line."""
        line = text.strip()
        if not line:
            return
        if len(text) > LONGEST_LINE:
            self._refuse(number, OTHER, text)
        elif text[0].isspace() and self.unread and self.unread[-1].line == number - 1:
            self._refuse(number, self.unread[-1].reason, line)
        elif _IS_WARNING.match(line):
            self._refuse(number, WARNING, line)
        elif line.startswith(_SPEECH):
            self._hear(line)
        elif not self._take_model(number, line):
            self._take_layer(number, line)

    def _refuse(self, number: int, reason: str, text: str) -> None:
        self.unread.append(UnreadLine(self.path, number, reason, text[:LONGEST_LINE]))

    # -- messages of the scripts --------------------------------------------------------------------------------------

    def _hear(self, line: str) -> None:
        if line.startswith(_TRAINED):
            self._said_mode = "training"
        found = _DATASET.search(line)
        if found:
            self._last = hardware_named(found["hardware"])
            self._tell(self._last)

    def _tell(self, hardware: Hardware) -> None:
        """Set the configuration of the rows since the last such line: a script prints it after the rows."""
        self.rows[self._told :] = [replace(row, hardware=hardware) for row in self.rows[self._told :]]
        self._told = len(self.rows)

    # -- whole models -------------------------------------------------------------------------------------------------

    def _take_model(self, number: int, line: str) -> bool:
        """Parse a line of a whole model; return whether it is one."""
        name = _NAME.fullmatch(line)
        if name:
            self._close_model()
            self._model, self._said_mode = (number, name["name"], sizes(name["size"]), name["size"][0] == "["), None
        elif _NUMBER.fullmatch(line) and self._model:
            self._numbers.append(float(line))
            if len(self._numbers) == (2 if self._model[3] else 4):
                self._add_numbers(self._numbers)
        elif (form := _TEXT_FORM.fullmatch(line)) and self._model and all(map(_NUMBER.fullmatch, form.groups())):
            time_ms, energy_mj, _, std_mj = map(float, form.groups())
            self._add_model(Figures(time_ms / 1e3, None, known(energy_mj), known(std_mj)), None)
        elif _UNIT.fullmatch(line):
            self._model = None
            self._refuse(number, SUM, line)
        else:
            return self._take_model_row(number, line)
        return True

    def _take_model_row(self, number: int, line: str) -> bool:
        row = _ROW.fullmatch(line)
        if not row or "(" in row["what"]:
            return False
        figures = figures_of(row["rest"].split(" "))
        if figures is None:
            self._refuse(number, CUT, line)
        elif self._model is None:
            self._refuse(number, NO_NAME, line)
        else:
            self._add_model(figures[0], figures[2])
        return True

    def _add_numbers(self, numbers: Sequence[float]) -> None:
        """Add the model of figures that were printed one per line: s, s, mJ, mJ, or ms and mJ."""
        if len(numbers) == 2:
            self._add_model(Figures(numbers[0] / 1e3, None, known(numbers[1])), None)
        else:
            time_s, time_std_s, energy_mj, std_mj = numbers
            self._add_model(Figures(time_s, known(time_std_s), known(energy_mj), known(std_mj)), None)

    def _add_model(self, figures: Figures, started_ns: int | None) -> None:
        assert self._model is not None
        number, name, size, _ = self._model
        self._model, self._numbers = None, []
        if not is_time(figures.time_s):
            self._refuse(number, NO_TIME, name)
            return
        mode = self._said_mode or self._mode
        self.rows.append(FileRow(self.path, number, name, size, figures, mode=mode, started_ns=started_ns))

    def _close_model(self) -> None:
        if self._model is not None:
            number, name, size, _ = self._model
            self._refuse(number, CUT if self._numbers else NO_FIGURES, f"{name} {size}")
        self._model, self._numbers = None, []

    # -- layers -------------------------------------------------------------------------------------------------------

    def _take_layer(self, number: int, line: str) -> None:
        start = [found.start() for found in _LAYER_START.finditer(line)][-1:]
        found = _ROW.fullmatch(line, start[0]) if start else None
        figures = figures_of(found["rest"].split(" ")) if found else None
        if found and figures:
            if start[0]:  # the earlier row was cut off, and this one follows without a line break
                self._refuse(number, CUT, line[: start[0]])
            self._add_layer(number, found, figures)
        elif _LAYER.fullmatch(line):
            self._close_echo()
            self._echo = number, line
        elif found or (start and start[0] == 0) or all(map(_NUMBER.fullmatch, line.split(" "))):
            self._echo = None
            self._refuse(number, CUT, line)
        else:
            is_error = line.startswith(("Traceback ", "slurmstepd", "torch.")) or re.match(r"[\w.]*Error\b", line)
            self._refuse(number, ERROR if is_error else OTHER, line)

    def _add_layer(
        self, number: int, found: re.Match[str], figures: tuple[Figures, Figures | None, int | None]
    ) -> None:
        of_call, training, started_ns = figures
        self._echo = None
        if not all(is_time(one.time_s) for one in (of_call, training) if one):
            self._refuse(number, NO_TIME, found[0])
            return
        row = FileRow(self.path, number, found["what"], sizes(found["size"]), of_call, training)
        self.rows.append(replace(row, is_evaluated=training is not None, started_ns=started_ns))

    def _close_echo(self) -> None:
        """Add a layer that was announced and has no row to the unread lines: its measurement did not finish."""
        if self._echo is not None:
            self._refuse(self._echo[0], NO_FIGURES, self._echo[1])
        self._echo = None


def sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in ``(32, 3, 56, 56)`` or ``[32, 3, 56, 56]``."""
    return tuple(int(one) for one in text[1:-1].split(",") if one.strip())


def figures_of(values: Sequence[str]) -> tuple[Figures, Figures | None, int | None] | None:
    """Return a row's figures, those of training, and its start; None if it is cut off or not a row."""
    if len(values) not in (OLD_VALUES, INFERENCE_VALUES, TRAINING_VALUES):
        return None
    try:
        started = datetime.strptime(values[11], _DATE).replace(tzinfo=UTC)
        datetime.strptime(values[12], _DATE)
        numbers = [float(one) for place, one in enumerate(values) if place not in (11, 12)]
        iterations = int(values[4])
    except ValueError:
        return None
    if not 1970 <= started.year <= _LAST_YEAR:
        return None
    time_s, energy_mj, _, std_mj, _, runtime_s, power_w, power_std_w = numbers[:8]
    count = iterations if 0 < iterations < LARGEST else None
    std_s = known(numbers[11]) if len(values) > OLD_VALUES else None
    inference = Figures(
        time_s, std_s, known(energy_mj), known(std_mj), known(power_w), known(power_std_w), count,
        known(runtime_s),
    )  # fmt: skip
    training = None
    if len(values) == TRAINING_VALUES:
        second = numbers[12:]
        training = Figures(
            second[0], known(second[1]), known(second[2]), known(second[3]), known(second[5]), known(second[6]), None,
            known(second[4]),
        )  # fmt: skip
    return inference, training, int(started.timestamp()) * 1_000_000_000


def known(value: float) -> float | None:
    """Return a number; None if the script could not compute it, or it is out of range for a GPU."""
    return value if abs(value) < LARGEST else None


def is_time(value: float) -> bool:
    """Return whether a number can be a time in s."""
    return 0 < value < LARGEST


def by_reason(unread: Iterable[UnreadLine]) -> dict[str, list[UnreadLine]]:
    """Return unread lines grouped by reason, the most frequent first."""
    found: dict[str, list[UnreadLine]] = {}
    for one in unread:
        found.setdefault(one.reason, []).append(one)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
