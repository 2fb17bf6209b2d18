"""What follows the steps that were needed: later stages and evaluations are simulated, and nothing is written."""

from __future__ import annotations

import runpy
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate import child
from gpuledger.simulate.estimate.failures import reserved_with_both
from gpuledger.simulate.estimate.follow import follow
from gpuledger.simulate.estimate.step_plan import StepPlan
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest import rest
from gpuledger.simulate.rest.ending import StepsDone
from gpuledger.simulate.rest.own_code import is_own, own_place
from gpuledger.simulate.rest.program_source import install_changes
from gpuledger.simulate.rest.rest import MOST_LATER_STEPS, RestOfProgram
from gpuledger.simulate.rest.side_effects import follow_temporary_files, guard_against_effects

pytestmark = pytest.mark.torch
NEEDED = 3


class Program:
    """A script that calls ``step``, ``use`` and ``say``. The rest begins after its third step."""

    def __init__(self, directory: Path, patches: Patches) -> None:
        self.device = SimulatedDevice(find_card("h200"), CachingAllocator())
        self.rest = RestOfProgram(self.device, own_place, is_own, str(directory / "run"))
        self.patches = patches
        self.said: list[object] = []
        self.steps: list[int] = []
        self._file = directory / "train.py"
        install_changes(patches, is_own, self.rest)

    def use(self, size_bytes: int) -> None:
        self.device.allocator.free(self.device.malloc(size_bytes << 20, "use"))

    def step(self, size_bytes: int) -> None:
        self.use(size_bytes)
        self.steps.append(size_bytes)
        self.device.steps = len(self.steps)
        if self.rest.began:
            self.rest.step_ended(len(self.steps))
        elif len(self.steps) == NEEDED:
            self.rest.begin(NEEDED)

    def run(self, source: str, **more: Any) -> None:
        self._file.write_text(textwrap.dedent(source), encoding="utf-8")
        given: dict[str, Any] = {"step": self.step, "use": self.use, "say": self.said.append, **more}
        given["begin"] = self.rest.begin
        try:
            runpy.run_path(str(self._file), init_globals=given)
        finally:
            self.rest.end()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    patches = Patches()
    yield Program(tmp_path, patches)
    patches.undo()


def test_later_stages_and_what_follows_them_are_simulated(program: Program) -> None:
    program.run("""
        for size in (10, 20, 80):
            for number in range(100):
                step(size)
            else:
                say("all")
            say(size)
        use(300)
    """)
    assert program.said == [10, 20, 80]
    assert program.steps == [10, 10, 10, 20, 20, 80, 80]
    assert program.device.counters.peak_allocated_bytes == 300 << 20


def keeping(program: Program) -> Any:
    """Return a function that allocates what the program keeps."""
    return lambda size_bytes: program.device.malloc(size_bytes << 20, "keep")


def test_a_short_loop_goes_on_as_long_as_what_it_keeps_may_exceed_the_peak(program: Program) -> None:
    program.run(
        """
        use(100)
        for size in (8, 4, 2, 1):
            for _ in range(3):
                step(size)
            keep(30)
        """,
        keep=keeping(program),
    )
    assert program.device.counters.peak_allocated_bytes == 120 << 20


def test_a_short_loop_ends_if_what_it_keeps_cannot_exceed_the_peak(program: Program) -> None:
    program.run(
        """
        use(200)
        for size in (8, 4, 2, 1):
            for _ in range(3):
                step(size)
            keep(30)
        """,
        keep=keeping(program),
    )
    assert program.steps == [8, 8, 8]


def test_a_long_loop_that_keeps_more_ends(program: Program) -> None:
    program.run(
        """
        for _ in range(1000):
            step(8)
            keep(1)
        """,
        keep=keeping(program),
    )
    assert len(program.steps) < 10


def test_a_few_equal_epochs_are_enough(program: Program) -> None:
    program.run("""
        def train():
            done = 0
            while done < 500:
                step(10)
                done += 1
            return done


        epoch = 0
        while True:
            say((epoch, train()))
            use(5)
            epoch += 1
    """)
    assert program.said == [(0, 3), (1, 1), (2, 1), (3, 1)]


def test_loops_without_steps_and_those_of_generators_are_complete(program: Program) -> None:
    program.run("""
        def sizes():
            for number in range(9):
                yield len(str(number))


        for _, size in zip(range(5), sizes(), strict=False):
            step(size)
        waiting = iter(sizes())
        for _ in range(2):
            step(next(waiting))
        found = [len(str(number)) for number in range(50)]
        for number in range(50):
            found.append(len(found))
        say(len(found))
        say(sum(1 for _ in waiting))
    """)
    assert program.said == [100, 8]


def test_a_program_that_was_changed_has_its_lines(program: Program) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        program.run("""
            for size in (1, 2):

                step(
                    size / 0
                )
        """)
    assert caught.traceback[-1].lineno == 4
    with pytest.raises(SyntaxError, match=r"train\.py, line 2"):
        program.run("\nfor\n")


def test_a_float_of_the_program_can_be_a_placeholder(program: Program) -> None:
    program.patches.undo()
    install_changes(program.patches, is_own, number=lambda value: -float(value))
    program.run("say(float('2')); say(list(map(float, '12'))); say(isinstance(1.0, float))")
    program.run("def float(value): return value\nsay(float('2'))")
    program.run("from math import floor as float\nsay(float(2.5))")
    assert program.said == [-2.0, [1.0, 2.0], True, "2", 2]


def test_a_function_of_the_program_can_be_called_afterwards(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ("def tell():", "    for digit in '12': say(float(digit))", "    open('told', 'w').close()", "say(tell)")
    program.run("\n".join(lines))
    program.patches.undo()
    tell: Any = program.said.pop()
    tell()  # as an atexit handler
    assert program.said == [1.0, 2.0]
    assert (tmp_path / "told").exists()


def test_the_rest_is_limited(program: Program) -> None:
    program.run("for _ in iter(int, 1): step(1)")
    assert len(program.steps) == NEEDED
    with pytest.raises(StepsDone):
        program.run("[step(1) for _ in range(1000)]")
    assert len(program.steps) == NEEDED + MOST_LATER_STEPS
    (note,) = program.rest.notes
    assert note.endswith(
        f"the simulation ended where the program takes {MOST_LATER_STEPS} more steps. What follows is not included."
    )
    program.rest.notes.clear()
    with pytest.raises(StepsDone):
        program.run("""
            begin(0)
            try:
                [use(1) for _ in range(100_000)]
            finally:
                use(1)
        """)
    assert program.device.counters.alloc_count < rest._LEAST_REQUESTS + 200
    (note,) = program.rest.notes
    assert note.endswith("the simulation ended where the program waits or takes long. What follows is not included.")


@pytest.fixture
def no_alarm() -> Iterator[None]:
    """Nobody uses the signal: a limit of the test's time does."""
    handler, (left_s, _) = signal.signal(signal.SIGALRM, signal.SIG_DFL), signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left_s)


@pytest.mark.parametrize("line", ["while True: time.sleep(0.01)", "threading.Event().wait(60)", "while waits: pass"])
@pytest.mark.usefixtures("no_alarm")
def test_a_rest_that_waits_is_ended(program: Program, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(rest, "_WALL_RATIO", 0.3 / max(time.thread_time(), 5.0))
    monkeypatch.setattr(rest, "_GRACE_S", 0.2)
    with pytest.raises(StepsDone):
        program.run(f"""
            import threading, time

            waits = True
            for _ in range(10):
                step(1)
            {line}
        """)
    assert program.rest.notes == [
        "train.py:7: the simulation ended where the program waits or takes long. What follows is not included."
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("open('scores.json', 'w')", "writes scores.json"),
        ("os.makedirs('made', exist_ok=True)", "writes made"),
        ("os.remove('kept.txt')", "removes kept.txt"),
        ("os.system('true')", "starts another program"),
        ("os.kill(0, 0)", "sends a signal"),
        ("pq.write_table(table, 'kept.txt')", "calls write_table"),
        ("torch.jit.save(scripted, 'kept.txt')", "calls save"),
        ("h5py.File('kept.txt', 'w')", "calls File"),
        ("h5py.File('kept.txt', mode='r+')", "calls File"),
    ],
)
def test_nothing_is_written_after_the_steps(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept.txt").write_text("kept", encoding="utf-8")
    with pytest.raises(StepsDone):
        program.run(f"""
            import os
            import types
            from pathlib import Path
            import pyarrow as pa
            import pyarrow.parquet as pq
            import torch

            table, scripted = pa.table({{"a": [1]}}), torch.jit.script(torch.nn.Linear(1, 1))
            h5py = types.SimpleNamespace(File=type("File", (), {{"__module__": "h5py"}}))
            os.makedirs("before", exist_ok=True)
            for _ in range(10):
                step(1)
            os.makedirs("before", exist_ok=True)
            say(Path("kept.txt").read_text())
            {line}
            say("not reached")
        """)
    assert program.said == ["kept"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "kept.txt", "train.py"]
    assert program.rest.notes == [
        f"train.py:16: the simulation ended where the program {what}. What follows is not included."
    ]


def test_the_directory_of_the_estimate_is_written_however_its_path_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    said: list[str] = []
    guard_against_effects(said.append, "../run")
    try:
        for path in (Path("../run/events"), tmp_path / "run" / "counters", tmp_path / "runs"):
            path.write_text("recorded", encoding="utf-8")
    finally:
        guard_against_effects(None)
    assert said == ["writes runs"]


def test_temporary_files_of_the_program_are_written_and_removed(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    follow_temporary_files()
    with pytest.raises(StepsDone):
        program.run("""
            import os
            import tempfile
            from pathlib import Path

            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "data").mkdir()
                Path(folder, "data", "before").touch()
                for _ in range(10):
                    step(1)
                Path(folder, "data", "after").write_text("not computed")
                with tempfile.NamedTemporaryFile(dir=folder) as named, tempfile.TemporaryFile() as unnamed:
                    named.write(b"1")
                    unnamed.write(b"1")
            handle, written = tempfile.mkstemp()
            os.remove(written)
            use(50)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "a")
                path.write_text("not computed")
                path.rename("kept")
        """)
    assert program.rest.notes == [
        "train.py:21: the simulation ended where the program renames kept. What follows is not included."
    ]
    assert program.device.counters.peak_allocated_bytes == 50 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "line", ["threading.Thread(target=write).start()", "ThreadPoolExecutor(1).submit(write).exception()"]
)
def test_a_thread_writes_nothing_after_the_steps(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept.txt").write_text("kept", encoding="utf-8")
    program.run(f"""
        import threading
        from concurrent.futures import ThreadPoolExecutor


        def write():
            with open("kept.txt", "w") as file:
                file.write("not computed")


        for _ in range(10):
            step(1)
        {line}
        for thread in threading.enumerate():
            if getattr(thread, "_target", None) is write:
                thread.join()
    """)
    assert Path("kept.txt").read_text(encoding="utf-8") == "kept"
    assert program.rest.notes == [
        "train.py:7: the simulation ended where the program writes kept.txt. What follows is not included."
    ]


def test_what_writes_no_file_is_simulated(program: Program) -> None:
    """Functions of the program with such names, open files, and calls before the rest."""
    program.run("""
        import io
        import json
        import torch

        log, sizes = io.StringIO(), {"w": 1}


        def save_checkpoint(size):
            log.write(str(size))
            use(size)


        json.dumps(sizes)
        for _ in range(10):
            step(1)
        save_checkpoint(50)
        say(sizes.get("w"))
        say(getattr(log, "w", None))
        say(log.getvalue())
        say(torch.onnx.is_in_onnx_export())
    """)
    assert program.said == [1, None, "50", False]
    assert program.rest.notes == []
    assert program.device.counters.peak_allocated_bytes == 50 << 20


def test_a_loader_gives_a_loop_fewer_batches(program: Program) -> None:
    plan = StepPlan(None, program.device)
    plan.install(program.patches, program.rest)
    loader: Any = DataLoader(TensorDataset(torch.arange(50)), batch_size=1)
    assert sum(1 for _ in loader) == 50
    program.rest.began = True
    assert len([batch for batch in loader]) == 2  # noqa: C416  # this loop asks, and list() does not
    batches = iter(loader)
    assert [int(next(batches)[0]) for _ in range(9)] == list(range(9))
    program.run(
        """
        def until_none(batches):
            seen = 0
            while next(batches, None) is not None:
                seen += 1
            return seen


        def until_the_error(batches):
            seen = 0
            while True:
                try:
                    next(batches)
                except (KeyError, StopIteration):
                    return seen
                seen += 1


        begin(0)
        say(until_none(iter(LOADER)))
        say(until_the_error(iter(LOADER)))
        say(sum(batch[0] for batch in [next(iter(LOADER), None)]).item())
        """,
        LOADER=loader,
    )
    assert program.said == [2, 2, 0]


def test_loops_of_coroutines_end_unless_others_may_wait_for_them(program: Program) -> None:
    program.run("""
        import asyncio


        async def train():
            for _ in range(50):
                step(1)
                await asyncio.sleep(0)


        async def serve(requests):
            seen = 0
            while (request := await requests.get()) is not None:
                seen += request
                use(1)
            return seen


        async def ask():
            requests = asyncio.Queue()
            server = asyncio.create_task(serve(requests))
            for number in range(5):
                await requests.put(number)
            await requests.put(None)
            say(await server)


        asyncio.run(train())
        asyncio.run(ask())
    """)
    assert len(program.steps) == NEEDED
    assert program.said == [10]


def test_an_error_after_the_steps_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import torch

            model = torch.nn.Linear(64, 64).cuda()
            optimizer = torch.optim.SGD(model.parameters())
            for _ in range(50):
                optimizer.zero_grad()
                model(torch.ones(8, 64, device="cuda")).sum().backward()
                optimizer.step()
            with torch.no_grad():
                model(torch.ones(8000, 64, device="cuda"))
            raise KeyError("accuracy")
        """),
        encoding="utf-8",
    )
    order: dict[str, Any] = {"card": "h200", "steps": None, "settings": {}, "run_directory": str(tmp_path / "run")}
    (tmp_path / "run").mkdir()
    outcome = follow(order, lambda: child.run_as_main([str(script)]))
    assert (outcome["ended"], outcome["steps"], outcome["varied"]) == ("steps", 3, False)
    assert outcome["notes"] == [
        "train.py:12: after the simulated steps, KeyError: 'accuracy'. What follows is not included."
    ]
    assert outcome["peak_reserved_bytes"] > 8000 * 64 * 4 * 2
    assert torch.ones(1).device.type == "cpu"


@pytest.mark.parametrize("ended", ["steps", "exit"])
def test_the_rest_is_also_followed_with_other_assumptions(ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what follows the steps of a program with so few that all of them were needed."""

    def pretended(order: dict[str, Any], *_: object) -> dict[str, Any]:
        """Return an outcome with 5 bytes, and 100 more with the rest."""
        is_whole = order["steps"] is None
        outcome = {"ended": ended if is_whole else "steps", "steps": 3, "assumed": True, "memory_errors": 0}
        return {**outcome, "with_rest": is_whole and ended == "steps", "peak_reserved_bytes": 100 * is_whole + 5}

    monkeypatch.setattr(child, "load_for_forks", lambda: pretended)
    assert child.follow_program({"steps": None}, [])["reserved_if"] == {"least": 105, "largest": 105}
    assert child.follow_program({"steps": 3}, [])["reserved_if"] == {"least": 5, "largest": 5}


def test_what_autograd_saves_is_in_memory(program: Program) -> None:
    """``save_for_backward`` of the program's own functions, and ``save_on_cpu``, write no file."""
    program.run("""
        import torch

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, data):
                ctx.save_for_backward(data)
                return data * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2

        for _ in range(10):
            step(1)
        with torch.autograd.graph.save_on_cpu():
            Twice.apply(torch.ones(2, requires_grad=True)).sum().backward()
        say("reached")
    """)
    assert program.said == ["reached"]
    assert not program.rest.notes


def test_a_rollout_after_few_steps_is_reached(program: Program) -> None:
    """Many requests of memory after a start with few."""
    program.run("""
        for _ in range(10):
            step(1)
        for _ in range(9000):
            use(1)
        say("reached")
    """)
    assert program.said == ["reached"]


@pytest.mark.parametrize(("has_extremes", "followed"), [(False, ["least"]), (True, ["least", "largest"])])
def test_a_program_is_followed_once_for_both_extremes_if_they_are_the_same(
    has_extremes: bool, followed: list[str]
) -> None:
    asked: list[str] = []

    def follow_with(assumption: str) -> dict[str, Any]:
        asked.append(assumption)
        return {"ended": "exit", "has_extremes": has_extremes, "peak_reserved_bytes": 10 * len(asked)}

    assert reserved_with_both(follow_with) == {"least": 10, "largest": 10 * len(followed)}
    assert asked == followed


def test_a_program_that_failed_with_the_least_is_followed_with_the_largest() -> None:
    outcomes: dict[str, dict[str, Any]] = {"least": {}, "largest": {"ended": "exit", "peak_reserved_bytes": 7}}
    assert reserved_with_both(outcomes.__getitem__) == {"least": None, "largest": 7}
