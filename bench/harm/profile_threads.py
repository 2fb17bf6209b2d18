"""Starts and stops PyTorch's profiler of all threads while three threads train, and counts the processes that crash.

``python bench/harm/profile_threads.py`` writes ``bench/harm/results/cpu/profile_threads.json``. Each row is one way to
do it, in several processes with a thread switch interval of 1 us:

- ``others compute``: the threads go on, or they wait at the start or the stop alone.
- ``others wait``: each waits before a module call, outside operators.
- ``others wait in operators``: each waits in the ``forward`` of an ``autograd.Function``, or in a backward pass.
- ``one thread alone, in operators``: it stops and starts the profiler inside an operator; there are no other threads.
- ``then go on``: all threads leave what they are inside before the next profile starts.
- ``gpuledger``: with gpuledger's own code, which holds the threads at any module call.

The rows ``frames`` call ``sys._current_frames`` while threads start and garbage with finalizers is collected, for 20 s.
Before Python 3.11.9 and 3.12.3 the process can hang. ``frames, uncollected`` does it as gpuledger does.

Takes about 15 minutes on two cores. With names of rows, only those run, and nothing is written without ``-o``.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import torch
from environment import ROOT, describe_environment
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpuledger.collect.adapter import kineto
from gpuledger.collect.adapter.frames import frames_by_thread
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.passes.held_threads import HeldThreads

RESULT = ROOT / "bench" / "harm" / "results" / "cpu" / "profile_threads.json"
THREADS, PROCESSES, CYCLES = 3, 10, 100
TIMEOUT_S, FRAMES_S = 120.0, 20.0
CALLS, FUNCTION, BACKWARD, NOWHERE = "calls", "function", "backward", ""
"""Where a thread waits."""

ROWS: dict[str, tuple[str, str, bool]] = {
    "one thread alone": (NOWHERE, NOWHERE, True),
    "others compute": (NOWHERE, NOWHERE, False),
    "others compute, then go on": (NOWHERE, NOWHERE, True),
    "others compute at the start, then go on": (NOWHERE, CALLS, True),
    "others compute at the stop, then go on": (CALLS, NOWHERE, True),
    "others wait": (CALLS, CALLS, False),
    "others wait in operators": (FUNCTION, FUNCTION, False),
    "others wait in operators, then go on": (FUNCTION, FUNCTION, True),
    "others wait in backward passes": (BACKWARD, BACKWARD, False),
    "gpuledger": (NOWHERE, NOWHERE, True),
}
"""Name -> where the threads wait at the start and the stop, and whether they leave their operators before the next."""
ALONE_IN_OPERATORS = "one thread alone, in operators"
FRAMES = ("frames", "frames, uncollected")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="rows; all by default")
    parser.add_argument("-o", type=Path, help="profile_threads.json without names of rows")
    parser.add_argument("--at-once", type=int, default=2, help="number of processes at a time")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.child)
        return 0
    names = options.rows or [ALONE_IN_OPERATORS, *ROWS, *FRAMES]
    rows = {name: run_row(name, options.at_once) for name in names}
    told = {"environment": describe_environment("cpu"), "threads": THREADS, "cycles": CYCLES, "rows": rows}
    place = options.o or (None if options.rows else RESULT)
    if place is not None:
        place.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["crashed"] or row["hung"] for name, row in rows.items() if "gpuledger" in name) else 0


def run_row(name: str, at_once: int) -> dict[str, Any]:
    """Run the processes of a row."""
    started_s = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(lambda _: run_process(name), range(3 if name in FRAMES else PROCESSES)))
    told = [json.loads(text) for status, text in outcomes if status == 0]
    row = {
        "processes": len(outcomes),
        "crashed": sum(status < 0 for status, _ in outcomes),
        "hung": sum(status is HUNG for status, _ in outcomes),
        "failed": sum(status > 0 and status is not HUNG for status, _ in outcomes),
        "statuses": [status for status, _ in outcomes],
        "seconds": round(time.monotonic() - started_s),
        **{key: sum(one[key] for one in told) for key in (told[0] if told else ())},
    }
    print(name, row, flush=True)
    return row


HUNG = 124


def run_process(name: str) -> tuple[int, str]:
    """Return the exit status and the result of one process."""
    command = [sys.executable, __file__, "--child", name]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=FRAMES_S * 3 if name in FRAMES else TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return HUNG, ""
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    return ended.returncode, lines[-1] if lines else ""


# -- one process -----------------------------------------------------------------------------------------------------


class Gate:
    """Lets threads wait at one place until it is opened."""

    def __init__(self) -> None:
        self.place = NOWHERE
        self.inside: set[int] = set()
        self._is_open = threading.Event()
        self._is_open.set()

    def wait(self, place: str) -> None:
        """Wait if threads are to wait at this place."""
        if place == self.place and not self._is_open.is_set():
            self.inside.add(threading.get_ident())
            self._is_open.wait()
            self.inside.discard(threading.get_ident())

    def shut(self, place: str) -> None:
        """Let all threads wait at a place, and return when they do."""
        if place != NOWHERE:
            self.place = place
            self._is_open.clear()
            while len(self.inside) < THREADS:
                time.sleep(0.0002)

    def open(self) -> None:
        """Let them go on."""
        self._is_open.set()

    def pass_once(self) -> None:
        """Let all threads leave what they are inside."""
        self.shut(CALLS)
        self.open()
        while self.inside:
            time.sleep(0.0002)


gate = Gate()


class WaitsInForward(nn.Linear):
    """Waits inside the operator that calls it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Wait, and compute."""
        gate.wait(FUNCTION)
        return super().forward(x)


class WaitsInBackward(nn.Linear):
    """Waits where a checkpoint computes it again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute, after a wait inside a backward pass."""
        if torch._C._current_graph_task_id() != -1:
            gate.wait(BACKWARD)
        return super().forward(x)


class CallsModule(torch.autograd.Function):
    """An operator that calls a module."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        """Call the module."""
        with torch.no_grad():
            return x + module(x).sum() * 0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Return any gradient."""
        return gradients[0] * 2, None


class Trainings:
    """Three threads that train a small model each until :meth:`end`."""

    def __init__(self) -> None:
        self.iterations: list[None] = []
        self._is_over = False
        self._threads = [threading.Thread(target=self._train) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()
        self.go_on(9)

    def go_on(self, iterations: int) -> None:
        """Wait until the threads have done more iterations."""
        count = len(self.iterations) + iterations
        while len(self.iterations) < count:
            time.sleep(0.0005)

    def end(self) -> None:
        """Let them end, and wait for that."""
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def _train(self) -> None:
        first, inner, again, last = (
            nn.Linear(32, 32),
            WaitsInForward(32, 32),
            WaitsInBackward(32, 32),
            nn.Linear(32, 32),
        )
        optimizer = torch.optim.SGD([*first.parameters(), *again.parameters(), *last.parameters()], 0.01)
        while not self._is_over:
            gate.wait(CALLS)
            optimizer.zero_grad()
            x = first(torch.ones(8, 32))
            gate.wait(CALLS)
            x = CallsModule.apply(x, inner)  # type: ignore[no-untyped-call]
            x = checkpoint(again, x, use_reentrant=False)
            last(x).square().mean().backward()
            optimizer.step()
            self.iterations.append(None)


def run_child(name: str) -> None:
    """Run one process of a row and print its result."""
    torch.set_num_threads(1)
    if name in FRAMES:
        look_at_frames(frames_by_thread if name == FRAMES[1] else sys._current_frames)
        return
    if name == ALONE_IN_OPERATORS:
        profile_in_operators()
        return
    trainings = Trainings()
    sys.setswitchinterval(1e-6)
    at_start, at_stop, goes_on = ROWS[name]
    cycle = (
        by_gpuledger(trainings)
        if name == "gpuledger"
        else by_torch(trainings, at_start, at_stop, one=name[:3] == "one")
    )
    told = {"starts": 0, "events": 0, "of_all_threads": 0}
    for _ in range(CYCLES):
        if goes_on:
            gate.pass_once()
        events, is_of_all = cycle()
        told["starts"] += 1
        told["events"] += events
        told["of_all_threads"] += is_of_all
    gate.pass_once()
    trainings.end()
    print(json.dumps(told), flush=True)


def by_torch(trainings: Trainings, at_start: str, at_stop: str, *, one: bool) -> Callable[[], tuple[int, bool]]:
    """Return what profiles once, without gpuledger."""
    settings = None if one else torch._C._profiler._ExperimentalConfig(profile_all_threads=True)

    def cycle() -> tuple[int, bool]:
        profile = torch.autograd.profiler.profile(use_kineto=True, experimental_config=settings)
        gate.shut(at_start)
        profile._prepare_trace()
        profile._start_trace()
        gate.open()
        trainings.go_on(2)
        gate.shut(at_stop)
        events = len(torch._C._autograd._disable_profiler().events())
        gate.open()
        return events, not one

    return cycle


def by_gpuledger(trainings: Trainings) -> Callable[[], tuple[int, bool]]:
    """Return what profiles once with gpuledger's code, which would do it only once in a process."""
    others = HeldThreads(RankJournal(lambda: None, []), set(), lambda _error: False)

    def cycle() -> tuple[int, bool]:
        kineto._of_all_threads.clear()
        others.waits_in_vain = 0
        with others.held() as do_wait:
            profile = kineto.Profiler(all_threads=others.quiet if do_wait else None)
            profile.start()
        is_of_all = profile.has_all_threads
        trainings.go_on(2)
        while True:
            with others.held() as do_wait:
                if do_wait or not is_of_all:
                    return len(profile.stop(wait=False)), is_of_all

    return cycle


class ProfilesAnew(torch.autograd.Function):
    """An operator that stops the profiler and starts it again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Do that, and compute."""
        torch._C._autograd._disable_profiler()
        start_profile()
        return compute(x)


def start_profile() -> None:
    """Start to profile this thread."""
    profile = torch.autograd.profiler.profile(use_kineto=True)
    profile._prepare_trace()
    profile._start_trace()


def compute(x: torch.Tensor) -> torch.Tensor:
    """Run some operators."""
    for _ in range(300):
        x = x + 1
    return x


def profile_in_operators() -> None:
    """Stop and start the profile of this thread inside operators."""
    start_profile()
    for _ in range(CYCLES):
        ProfilesAnew.apply(compute(torch.ones(3)))  # type: ignore[no-untyped-call]
    torch._C._autograd._disable_profiler()
    print(json.dumps({"starts": CYCLES}), flush=True)


# -- frames of all threads ---------------------------------------------------------------------------------------------


class LetsOthersRun:
    """Garbage with a finalizer that releases the GIL."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        time.sleep(0)


def look_at_frames(look: Callable[[], object]) -> None:
    """Call a function that looks at the frames of all threads while threads start."""
    gc.set_threshold(5)
    ends_s = time.monotonic() + FRAMES_S
    looks = 0

    def start_threads() -> None:
        while time.monotonic() < ends_s:
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()

    starting = [threading.Thread(target=start_threads) for _ in range(THREADS)]
    for thread in starting:
        thread.start()
    while time.monotonic() < ends_s:
        LetsOthersRun()
        look()
        looks += 1
    for thread in starting:
        thread.join()
    print(json.dumps({"looks": looks}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
