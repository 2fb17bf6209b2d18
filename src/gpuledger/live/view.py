"""The loop of the live view: reads twice a second, draws what changed, takes keys; lines without a terminal."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from gpuledger.live.screen import History, ScreenChoice, frame, one_line
from gpuledger.report.base.terminal import Terminal

if TYPE_CHECKING:
    from gpuledger.live.gauges import Gauges
    from gpuledger.live.watched_run import RunNow, WatchedRun

PERIOD_S = 0.5
LINE_PERIOD_S = 10.0
_ALTERNATE, _USUAL = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@dataclass
class LiveView:
    """One live view. ``gauges`` or ``run`` may be absent, not both."""

    gauges: Gauges | None
    run: WatchedRun | None
    choice: ScreenChoice = field(default_factory=ScreenChoice)
    history: History = field(default_factory=History)
    said: str = ""
    """What came of the last request; on the last line until another key is pressed."""

    def press(self, key: str) -> bool:
        """Take a key; return whether the view goes on."""
        self.said = self.run.ask() if key == "d" and self.run is not None else ""
        return self.choice.press(key)

    def lines(self, terminal: Terminal, rows: int) -> tuple[list[str], RunNow | None]:
        """Return one frame, read now, and the run as it is."""
        gauges = self.gauges.read() if self.gauges else ()
        self.history.add(gauges)
        run = self.run.read() if self.run else None
        lines = frame(gauges, self.history, run, time.time_ns(), self.choice, terminal, rows)
        if self.said:
            lines[-1] = terminal.shortened(terminal.text(self.said), terminal.width_cells or 80)
        return lines, run

    def line(self) -> tuple[str, RunNow | None]:
        """Return one reading as one line, and the run as it is."""
        gauges = self.gauges.read() if self.gauges else ()
        run = self.run.read() if self.run else None
        return one_line(gauges, run, time.strftime("%H:%M:%S")), run


def write_lines(view: LiveView, stream: TextIO, sleep: Callable[[float], object] = time.sleep) -> None:
    """Write a line every ten seconds until the run has ended; without a run until interrupted."""
    terminal = Terminal.of(stream)
    while True:
        line, run = view.line()
        stream.write(terminal.text(line) + "\n")
        stream.flush()
        if run is not None and run.status != "running":
            return
        sleep(LINE_PERIOD_S)


def draw(view: LiveView, stream: TextIO, keys: TextIO) -> None:
    """Draw frames until ``q``; only the lines that changed are written."""
    with _raw(keys), _own_screen(stream):
        shown: list[str] = []
        while True:
            size = shutil.get_terminal_size()
            lines, _ = view.lines(Terminal.of(stream), size.lines)
            stream.write(changes(shown, lines))
            stream.flush()
            shown = lines
            for key in _pressed(keys, PERIOD_S):
                if not view.press(key):
                    return


def changes(shown: list[str], lines: list[str]) -> str:
    """Return what turns the lines shown into the new ones: a move and a line for each that differs."""
    wanted = [*lines, *([""] * (len(shown) - len(lines)))]
    return "".join(
        f"\x1b[{number};1H{line}\x1b[K"
        for number, line in enumerate(wanted, 1)
        if number > len(shown) or shown[number - 1] != line
    )


def _pressed(keys: TextIO, wait_s: float) -> str:
    """Return the keys pressed within ``wait_s``; at the end of input, the one that ends."""
    ready, _, _ = select.select([keys], [], [], wait_s)
    if not ready:
        return ""
    return os.read(keys.fileno(), 64).decode("ascii", "ignore") or "q"


@contextmanager
def _raw(keys: TextIO) -> Iterator[None]:
    """Take keys as they are pressed, without showing them."""
    import termios
    import tty

    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


@contextmanager
def _own_screen(stream: TextIO) -> Iterator[None]:
    """Draw on a screen of its own; what was there before comes back."""
    stream.write(_ALTERNATE)
    try:
        yield
    finally:
        stream.write(_USUAL)
        stream.flush()


def is_terminal(stream: TextIO = sys.stdout, keys: TextIO = sys.stdin) -> bool:
    """Return whether frames can be drawn and keys taken."""
    return stream.isatty() and keys.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
