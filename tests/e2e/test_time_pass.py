"""The passes that nobody asked for: what a recorded program gets beside memory, what is left of it, who goes first."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from programs import TRAIN, TRAIN_WITH_COMPILER, Ended, environment, manifest, write_script
from quick import bare
from quick import recorded as recorded_with

from gpuledger.analyze.step.overhead import find_overhead
from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.times import break_down_time
from gpuledger.model.run import Rank
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

WITHOUT_ENERGY = "Energy was not measured: the program uses no GPU that reports its energy."
STEPS = TRAIN + "for _ in range({count}): step()\n"
PROFILED = """
from torch.profiler import ProfilerActivity, profile, schedule
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait={wait}, warmup=1, active=2)) as theirs:
    for _ in range(20):
        step()
        theirs.step()
print(sorted((event.key, event.count) for event in theirs.key_averages()))
assert theirs.key_averages()
"""
TRACED = """
import json
from torch.profiler import ExecutionTraceObserver
from torch.autograd import profiler
observer = ExecutionTraceObserver().register_callback("trace.json")
observer.start(); step(); observer.stop(); observer.unregister_callback()
print(sorted(node["name"] for node in json.load(open("trace.json"))["nodes"]))
"""
FORKED = """
import os
torch.set_num_threads(1)
from torch.autograd import profiler
def child():
    print(torch._C._autograd._profiler_enabled(), model(torch.ones(2, 16)).shape, flush=True)
    with profiler.profile() as theirs: torch.ones(2) + 1
    print(sorted(event.key for event in theirs.key_averages()), flush=True)
    os._exit(3)
for number in range(18):
    if number == 3:
        pid = os.fork()
        if not pid: child()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    step()
"""
IN_A_THREAD = """
import threading
def train():
    for _ in range(10): step()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
WORKER = """
import queue, threading
to_do, done = queue.Queue(), queue.Queue()
def work():
    while (x := to_do.get()) is not None:
        model(x).sum().backward()
        done.put(None)
thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    optimizer.zero_grad()
    to_do.put(torch.ones(4, 16))
    done.get()
    optimizer.step()
to_do.put(None)
thread.join()
"""
SERVED = """
import time
from concurrent.futures import ThreadPoolExecutor
del optimizer
def answer(number):
    with torch.no_grad():
        model(torch.ones(4, 16))
        time.sleep(0.02)
with ThreadPoolExecutor(3) as pool:
    list(pool.map(answer, range(200)))
"""
BUSY = """
import sys
from concurrent.futures import ThreadPoolExecutor
del optimizer
torch.set_num_threads(1)
def answer(number):
    with torch.no_grad():
        x = torch.ones(4, 16) * number
        return model(x).argmax(1).tolist()
with ThreadPoolExecutor(4) as pool:
    print(sum(len(found) for found in pool.map(answer, range(2000))))
"""
TRAININGS = """
import threading
torch.set_num_threads(1)
del optimizer, model
models = [torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)) for _ in range(3)]
together = threading.Barrier(3)
def train(mine):
    optimizer = torch.optim.SGD(mine.parameters(), 0.1)
    together.wait()
    for _ in range(1000):
        optimizer.zero_grad()
        mine(torch.ones(8, 16)).square().mean().backward()
        optimizer.step()
threads = [threading.Thread(target=train, args=(one,)) for one in models]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
LEFT_BEHIND = """
import os, signal, traceback
from torch.optim import optimizer as optimizers
def installed():
    places = (torch.nn.Module, "__call__"), (torch.autograd, "backward"), (torch.autograd.profiler.profile, "__init__")
    ours = [[n for n in getattr(*place).__code__.co_varnames if "gpuledger" in n] for place in places]
    return ours, len(optimizers._global_optimizer_pre_hooks)
for _ in range(20):
    step()
    for wrong in (lambda: model(torch.ones(8, 17)), lambda: model(torch.ones(8, 16)).backward()):
        try: wrong()
        except RuntimeError: traceback.print_exc()
print(installed(), torch._C._autograd._profiler_enabled(), "TEARDOWN_CUPTI" in os.environ)
print(os.system("echo $TEARDOWN_CUPTI$KINETO_LOG_LEVEL"))
os.kill(os.getpid(), signal.SIGUSR2)
"""


def recorded(directory: Path, options: tuple[str, ...] = ("-q",)) -> Ended:
    """Return how ``train.py`` ends below ``gpuledger run`` as a user has it."""
    return recorded_with(["train.py"], directory, options, env=environment(GPULEDGER_PASSES=""))


def without_times(stderr: bytes) -> list[bytes]:
    """Return what was said, but for when Kineto said it."""
    return [line.split(b" ")[-1] if line.startswith((b"USDT:", b"[W")) else line for line in stderr.splitlines()]


def assert_unchanged(directory: Path, *options: str) -> None:
    """Record ``train.py`` and hold it to what it does bare."""
    alone, below = bare(["train.py"], directory), recorded(directory, ("-q", *options))
    assert (below.status, below.stdout) == (alone.status, alone.stdout)
    assert without_times(below.stderr) == without_times(alone.stderr)


def rank_of(directory: Path) -> Rank:
    return load(directory / "train.ledger").rank(0)


def test_operators_find_their_modules_and_sum_to_the_work(tmp_path: Path) -> None:
    write_script(tmp_path, STEPS.format(count=20))
    assert_unchanged(tmp_path)
    rank = rank_of(tmp_path)
    assert (rank.manifest.notes, rank.manifest.left_out) == ((), (WITHOUT_ENERGY,))
    assert rank.manifest.passes == ("energy", "memory", "time")
    assert rank.manifest.time_steps == (4, 6)
    assert not rank.manifest.energy_pass
    assert manifest(tmp_path / "train.ledger")["settings"]["passes"]["origin"] == "default"
    found = break_down_time(rank)
    assert found is not None
    assert found.on_host
    assert found.steps == 3
    assert found.unprofiled.count == 10
    assert sum(account.time_ns for account in found.accounts) == pytest.approx(found.work_ns)
    assert 0 < found.busy_ns <= found.work_ns
    placed = {(account.module, account.phase) for account in found.accounts}
    assert {("0", "forward"), ("0", "backward"), ("2", "forward"), ("2", "backward"), ("", "optimizer")} <= placed


def test_errors_look_as_they_do_bare_in_every_pass_and_then_nothing_is_left(tmp_path: Path) -> None:
    """The times are kept though the program dies of a signal: they are written when the pass ends."""
    write_script(tmp_path, TRAIN + LEFT_BEHIND)
    assert_unchanged(tmp_path, "--no-flight-recorder")  # which counts steps until the program ends
    assert break_down_time(rank_of(tmp_path)) is not None


def test_a_training_in_a_thread_has_times_and_torchs_profiler_says_nothing(tmp_path: Path) -> None:
    """It is the first use of Kineto in its process, of which another thread than the one with torch is told."""
    write_script(tmp_path, TRAIN + IN_A_THREAD)
    assert_unchanged(tmp_path)
    rank = rank_of(tmp_path)
    assert (rank.manifest.time_steps, rank.manifest.left_out) == ((4, 6), (WITHOUT_ENERGY,))
    found = break_down_time(rank)
    assert found is not None
    assert {("0", "forward"), ("2", "backward")} <= {(account.module, account.phase) for account in found.accounts}


PATIENT = """
from gpuledger.collect.passes import held_threads
held_threads.WAIT_S, held_threads.HOLD_S = 30.0, 60.0
"""
"""Waits for threads that a busy machine keeps from their next module call."""


@pytest.mark.parametrize(
    ("program", "phases"), [(WORKER, {"forward", "backward"}), (SERVED, {"evaluation"}), (BUSY, {"evaluation"})]
)
def test_modules_that_other_threads_call_have_times(program: str, phases: set[str], tmp_path: Path) -> None:
    assert {("0", phase) for phase in phases} <= placed_times(tmp_path, program)


def placed_times(directory: Path, program: str) -> set[tuple[str, str]]:
    """Record a program with threads. Return the modules and phases that have times."""
    write_script(directory, PATIENT + TRAIN + program)
    assert_unchanged(directory)
    rank = rank_of(directory)
    assert (rank.manifest.notes, rank.manifest.left_out) == ((), (WITHOUT_ENERGY,))
    found = break_down_time(rank)
    assert found is not None
    return {(account.module, account.phase) for account in found.accounts}


def test_threads_that_compute_all_the_time_have_times(tmp_path: Path) -> None:
    """The profiler can start and stop only while they are held at a module call.

    A thread can have no step among 200 of a busy machine, which are 0.05 s.
    """
    write_script(tmp_path, PATIENT + TRAIN + TRAININGS)
    assert_unchanged(tmp_path, "--passes", "memory,time:1000")
    found = break_down_time(rank_of(tmp_path))
    assert found is not None
    timed = {account.module for account in found.accounts if account.time_ns}
    first_layers = {module for module in timed if module.rpartition(".")[2] == "0"}
    assert len(first_layers) == 3, timed  # "0" is that of the only model that was called in the recorded steps


TOO_SHORT = (
    "No timing measurement: the program ended after step 2, before it could start. Use --steps 1:1 to record fewer "
    "steps before it."
)
CUT_SHORT = (
    "The timing measurement was cut short: the program ended during it. "
    "Use --steps 1:1 to record fewer steps before it."
)
AT_ONCE = "Use --step-on module, so that each call of the model is a step at once."
TOO_FEW = "No timing measurement: the program ended after step 1, before it could start. It needs a second step."


@pytest.mark.parametrize(
    ("count", "timed", "unprofiled", "said"),
    [
        (1, 1, 0, (WITHOUT_ENERGY, TOO_FEW)),
        (2, 1, 0, (WITHOUT_ENERGY, TOO_SHORT)),
        (3, 2, 0, (CUT_SHORT, WITHOUT_ENERGY)),
        (4, 1, 0, (CUT_SHORT, WITHOUT_ENERGY)),
        (5, 2, 0, (WITHOUT_ENERGY,)),
        (8, 3, 1, (WITHOUT_ENERGY,)),
        (30, 3, 10, (WITHOUT_ENERGY,)),
    ],
)
def test_a_short_script_gets_what_fits_and_nobody_is_alarmed(
    count: int, timed: int, unprofiled: int, said: tuple[str, ...], tmp_path: Path
) -> None:
    write_script(tmp_path, STEPS.format(count=count))
    ended = recorded(tmp_path, options=())
    assert b"pass" not in ended.stderr
    assert b"joules" not in ended.stderr
    rank = rank_of(tmp_path)
    assert rank.manifest.notes == ()
    assert rank.manifest.left_out == said
    found = break_down_time(rank)
    assert found is not None
    assert found.steps == timed
    assert (rank.manifest.recorded_time_steps is None) == (count > 3)
    times = step_times(rank)
    assert times.median_ns
    assert (f"{unprofiled} unprofiled step" in times.source) == bool(unprofiled)
    if not unprofiled:
        slower = ("1 recorded step", "2 recorded steps", f"{timed} profiled step{'s' if timed > 1 else ''}")
        assert times.source.endswith(slower[:2] if count <= 3 else slower[1:])  # without the first
        assert find_overhead(rank).profiled_step_frac is None  # with other steps, it depends on how even they are


CALLS_THAT_COULD_BE_NO_STEPS = """
import torch
from torch import nn
first, never_called = nn.Linear(4, 4), nn.Linear(4, 4)
with torch.no_grad():
    for _ in range(10):
        first(torch.ones(2, 4))
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), f"{TOO_SHORT.split(' 2,')[0]} 10, before it could start. {AT_ONCE}"),
        (("--step-on", "module"), None),
    ],
)
def test_steps_that_waited_for_a_training_are_counted_at_once_with_step_on_module(
    options: tuple[str, ...], said: str | None, tmp_path: Path
) -> None:
    write_script(tmp_path, CALLS_THAT_COULD_BE_NO_STEPS)
    recorded(tmp_path, options=options)
    assert [one for one in rank_of(tmp_path).manifest.left_out if one != WITHOUT_ENERGY] == ([said] if said else [])


def test_the_programs_own_profiler_goes_first_and_sees_what_it_sees_bare(tmp_path: Path) -> None:
    """It waits, warms up and works while ours would be at work."""
    write_script(tmp_path, TRAIN_WITH_COMPILER + PROFILED.format(wait=12))
    assert_unchanged(tmp_path)
    rank = rank_of(tmp_path)
    assert [note for note in rank.manifest.left_out if note.startswith("No timing measurement")]
    assert break_down_time(rank) is None


@pytest.mark.parametrize(("before", "times"), [(4, False), (6, True)])
def test_a_profiler_made_inside_ours_or_after_it_sees_what_it_sees_bare(
    before: int, times: bool, tmp_path: Path
) -> None:
    first = TRAIN_WITH_COMPILER + f"for _ in range({before}): step()\n"
    write_script(tmp_path, first + TRACED + PROFILED.format(wait=1))
    assert_unchanged(tmp_path)
    rank = rank_of(tmp_path)
    assert any(note.startswith("No timing measurement") for note in rank.manifest.left_out) != times
    assert (break_down_time(rank) is not None) == times


def test_without_a_gpu_no_profiler_is_said_to_add_energy(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN_WITH_COMPILER + PROFILED.format(wait=6))
    recorded(tmp_path, options=("--passes", "memory,time,energy"))
    notes = rank_of(tmp_path).manifest.notes
    assert WITHOUT_ENERGY in notes
    assert not any("energy includes" in note for note in notes)


def test_a_child_forked_inside_the_time_pass_inherits_no_profiler(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + FORKED)
    assert_unchanged(tmp_path)
    rank = rank_of(tmp_path)
    assert rank.manifest.time_steps == (5, 7)
    found = break_down_time(rank)
    assert found is not None
    assert found.steps == 3


def test_memory_alone_where_it_is_asked_for(tmp_path: Path) -> None:
    write_script(tmp_path, STEPS.format(count=20))
    (tmp_path / "pyproject.toml").write_text("[tool.gpuledger]\npasses = 'memory'\n")
    recorded(tmp_path)
    rank = rank_of(tmp_path)
    assert rank.manifest.passes == ("memory",)
    assert not rank.manifest.left_out
    assert break_down_time(rank) is None
    settings = json.loads((tmp_path / "train.ledger" / "manifest.json").read_text())["settings"]
    assert settings["passes"] == {"value": "memory", "origin": "pyproject.toml"}


CALLED_INSIDE = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.own = (nn.Linear(96, 96) for _ in range(3))
    def forward(self, x):
        x = checkpoint(self.first, x, use_reentrant=True)
        return Through.apply(self.own, checkpoint(self.again, x, use_reentrant=False))
class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, x):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)
    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = ctx.layer(x)
        return None, torch.autograd.grad(y, x, gradient)[0]
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    model(torch.ones(256, 96, requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_layers_that_a_function_of_autograd_calls_have_their_own_times(tmp_path: Path) -> None:
    """Without a GPU, the function is an operator around theirs."""
    write_script(tmp_path, CALLED_INSIDE)
    assert recorded(tmp_path).status == 0
    rank = load(tmp_path / "train.ledger").rank(0)
    times = break_down_time(rank)
    assert times is not None
    by_place = {(one.module, one.phase): one.time_ns for one in times.accounts}
    for layer in ("first", "again", "own"):
        assert by_place[layer, "forward"] > 0
        assert by_place[layer, "backward"] > 0
    assert times.busy_ns == pytest.approx(sum(by_place.values()))
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    kinds = {names.get(row["operator_id"]) for row in rank.table("spans").to_pylist()}
    assert not {"CheckpointFunction", "Through"} & kinds


HOOKED = """
import torch
from torch import nn
class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)
    def forward(self, x):
        y = torch.tanh(self.inner(x))
        y.register_hook(smoothed)
        return y
def smoothed(gradient):
    for _ in range(1_000):
        gradient = gradient + 0.01 * (gradient @ weight)
    return gradient
weight = torch.eye(64)
model = nn.Sequential(nn.Linear(64, 64), Hooked(), nn.BatchNorm1d(64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    model(torch.randn(128, 64)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_a_tensor_hook_computes_is_of_the_layer_that_made_the_tensor(tmp_path: Path) -> None:
    write_script(tmp_path, HOOKED)
    assert recorded(tmp_path).status == 0
    times = break_down_time(load(tmp_path / "train.ledger").rank(0))
    assert times is not None
    backward = {one.module: one.time_ns for one in times.accounts if one.phase == "backward"}
    assert backward.pop("1") > 2 * max(backward.values())


IN_BACKWARD = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
optimizers = {weight: torch.optim.SGD([weight], lr=0.1, momentum=0.9) for weight in model.parameters()}
def update(weight):
    optimizers[weight].step()
    optimizers[weight].zero_grad()
for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(update)
for _ in range(20):
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
"""


def test_steps_that_end_inside_backward_have_the_time_of_whole_steps(tmp_path: Path) -> None:
    """The profiler starts and stops outside of backward: after the steps have begun."""
    write_script(tmp_path, IN_BACKWARD)
    assert recorded(tmp_path).status == 0
    rank = rank_of(tmp_path)
    found = break_down_time(rank)
    assert found is not None
    assert found.steps == 3
    by_place = {(one.module, one.phase): one.time_ns for one in found.accounts}
    assert {(layer, phase) for layer in "012" for phase in ("forward", "backward")} <= by_place.keys()
    assert by_place["", "optimizer"] > 0
    assert {Path(one.line.split()[0]).name for one in found.lines if one.phase == "forward"} == {"train.py:12"}
    steps = [row for row in rank.table("steps").to_pylist() if not row["recorded"]]
    assert all(before["end_ns"] == after["start_ns"] for before, after in pairwise(steps))
    assert all(0 <= row["paused_ns"] < row["end_ns"] - row["start_ns"] for row in steps)
