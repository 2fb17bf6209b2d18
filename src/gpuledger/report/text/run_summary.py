"""The summary of a run, printed when a recording ends."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gpuledger.analyze.memory.empty import why_empty
from gpuledger.analyze.view.chosen_devices import highest_devices
from gpuledger.analyze.view.closing_notes import closing_notes
from gpuledger.analyze.view.view import build_view
from gpuledger.report.base.phrases import MISSING_OR_FAILED, entry, failure_text
from gpuledger.report.base.terminal import BOLD, Terminal
from gpuledger.report.text.first_screen import first_screen
from gpuledger.report.text.oom_text import CELLS, failure_lines

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import RunView
    from gpuledger.model.run import Run


def print_run_summary(run: Run, stream: TextIO) -> None:
    """Print the first screen of a finished recording, with the commands to try next."""
    for line in run_summary_lines(run, Terminal.of(stream)):
        stream.write(line + "\n")
    stream.flush()


def run_summary_lines(run: Run, terminal: Terminal) -> list[str]:
    """Return the first screen of a run, its notes and the commands to try next."""
    view = build_view(run, devices=highest_devices(run.ranks) or None)
    if view.devices:
        problems = view.problems if view.rank_set is not None else ()
        lines = [*entry(terminal, MISSING_OR_FAILED, *problems, cells=CELLS), *first_screen(view, terminal)]
    else:
        lines = entry(terminal, MISSING_OR_FAILED, *view.problems, cells=CELLS)
        lines += entry(terminal, "Nothing recorded", why_empty(run.ranks), cells=CELLS)
        lines += entry(terminal, "Program ended", *_failed(view), cells=CELLS)
        lines += failure_lines(view, terminal)
    return [
        *lines,
        *note_lines(closing_notes(view), terminal),
        *(_next_lines(view, terminal) if view.devices else []),
    ]


def _failed(view: RunView) -> list[str]:
    """Return how the program failed before anything was recorded; empty if it did not, or if memory was out."""
    if not view.run.ranks or view.out_of_memory:
        return []
    text = failure_text(view.run.manifest, view.run.ranks[0].manifest, is_only=len(view.run.ranks) == 1)
    return [text] if text else []


def _next_lines(view: RunView, terminal: Terminal) -> list[str]:
    here, run = Path.cwd(), view.run
    path = shlex.quote(run.url or str(run.path.relative_to(here) if run.path.is_relative_to(here) else run.path))
    commands = [f"gpuledger show {path} --by {view.highest.places_by}", f"gpuledger report {path} --open"]
    return next_lines(commands, terminal)


def note_lines(notes: Iterable[str], terminal: Terminal) -> list[str]:
    """Return the lines of notes, without duplicates."""
    return [line for note in dict.fromkeys(notes) for line in entry(terminal, "Note", note)]


def next_lines(commands: list[str], terminal: Terminal) -> list[str]:
    """Return the commands to try next, one per line. They are not shortened, so that they can be copied."""
    first, *others = map(terminal.text, commands)
    return [terminal.styled("Next", BOLD) + f"  {first}", *(f"      {command}" for command in others)]
