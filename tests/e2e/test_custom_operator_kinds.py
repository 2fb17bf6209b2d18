"""Memory and time of operators that a program defines are on the module or the line that calls them, also compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from custom_ops import KINDS, WIDTH, Net, Plain
from folders import TESTS
from programs import environment, write_script
from quick import recorded
from recorded import Recorded, read_recorded, record_run
from torch import nn

from gpuledger.analyze.step.times import break_down_time
from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import Rank
from gpuledger.services.runs import load

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # Dynamo reads attributes that warn

ROWS = 64
SIZE_BYTES = ROWS * WIDTH * 4
OPAQUE = ("scaled", "two", "cubed")
"""Kinds that the compiler calls as they are."""


def train(kinds: Mapping[str, Callable[[], nn.Module]], *, checkpointed: bool = False) -> Recorded:
    def program(_: object) -> object:
        net = Net(kinds, checkpointed=checkpointed)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _step in range(3):
            net(torch.randn(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, optimizer

    return record_run(program, steps=(2, 3))


def buffers(run: Recorded) -> Counter[tuple[str, str]]:
    """Return how many buffers as large as an activation the third step allocates, by phase and module."""
    found: Counter[tuple[str, str]] = Counter()
    for block in run.blocks:
        if block.step == 3 and block.bytes == SIZE_BYTES and block.phase in ("forward", "backward"):
            found[block.phase, block.module] += 1
    return found


def outside(run: Recorded) -> dict[tuple[str, str], int]:
    """Return the buffers that are on no module, or on the outermost one."""
    return {key: count for key, count in buffers(run).items() if key[1] in ("", run.paths[0])}


@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
def test_buffers_of_operators_are_on_the_module_that_calls_them(checkpointed: bool) -> None:
    run = train(KINDS, checkpointed=checkpointed)
    found = buffers(run)
    assert outside(run) == outside(train(dict.fromkeys(KINDS, Plain)))
    for name in KINDS:
        assert found["forward", f"kinds.{name}"] >= 1, name
    for name in ("two", "cubed", "function"):
        again = found["forward", f"kinds.{name}"] if checkpointed else 0
        assert found["backward", f"kinds.{name}"] > again // 2, name


def run_program(directory: Path, source: str) -> Rank:
    write_script(directory, source)
    own = {"TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"), "XDG_CACHE_HOME": str(directory / "ours")}
    recorded(["train.py"], directory, env=environment(GPULEDGER_PASSES="", **own))
    return load(directory / "train.ledger").rank()


def timed_phases(rank: Rank) -> set[tuple[str, str]]:
    """Return the modules with time in a profiled step, with the phase."""
    found = break_down_time(rank)
    assert found is not None
    return {(one.module, one.phase) for one in found.accounts if one.time_ns > 0}


HEAD = f"""
import sys
sys.path.insert(0, {str(TESTS / "support")!r})
import torch
from custom_ops import KINDS, WIDTH, Doubled, Net, scaled, two
"""

TRAINING = f"""
net = Net({{name: KINDS[name] for name in NAMES}}, checkpointed=COMPILED)
if COMPILED:
    net.compile()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    net(torch.randn({ROWS}, WIDTH)).square().mean().backward()
    optimizer.step()
"""


def test_times_of_operators_are_on_the_module_that_calls_them(tmp_path: Path) -> None:
    rank = run_program(tmp_path, HEAD + TRAINING.replace("NAMES", "KINDS").replace("COMPILED", "False"))
    phases = timed_phases(rank)
    assert {(f"kinds.{name}", phase) for name in KINDS for phase in ("forward", "backward")} <= phases


def test_so_are_those_of_a_compiled_model_that_computes_them_again_in_backward(tmp_path: Path) -> None:
    rank = run_program(tmp_path, HEAD + TRAINING.replace("NAMES", repr(OPAQUE)).replace("COMPILED", "True"))
    run = read_recorded(rank)
    assert run.manifest.compiled_unread is None
    plain = train(dict.fromkeys(OPAQUE, Plain))
    assert outside(run) == outside(plain)
    wanted = {(phase, f"kinds.{name}") for name in OPAQUE for phase in ("forward", "backward")}
    assert wanted <= set(buffers(run))
    phases = timed_phases(rank)
    assert {(module, phase) for phase, module in wanted} <= phases
    assert {module for module, phase in phases if phase in ("forward", "backward")} <= {"", *run.paths}


ALONE = """
weight = torch.randn(64, 64, requires_grad=True)
x = torch.randn(256, 64)
for _ in range(6):
    hidden = x @ weight
    first, second = two(hidden)
    third = scaled(first * second, 0.5)
    loss = Doubled.apply(third).square().mean()
    loss.backward()
    weight.grad = None
"""


def test_without_modules_they_are_on_the_line_that_calls_them(tmp_path: Path) -> None:
    run_program(tmp_path, HEAD + ALONE)
    source = {
        "train.py": (HEAD + ALONE).splitlines(),
        "custom_ops.py": (TESTS / "support" / "custom_ops.py").read_text(encoding="utf-8").splitlines(),
    }
    forward: set[str] = set()
    backward: set[str] = set()
    for one in build_view(load(tmp_path / "train.ledger")).highest.line_amounts:
        file, _, place = one.label.rpartition("/")[2].partition(":")
        text = source[file][int(place.split(" ")[0]) - 1].strip()
        if one.backward_ns:
            backward.add(text)
        elif one.time_ns:
            forward.add(text)
    assert {"first, second = two(hidden)", "kept = x * 2"} <= forward
    formulas = (
        "return scaled(gradient, ctx.by), None",
        "two.register_autograd(lambda _ctx, first, second: first * 2 + second)",
        "return gradients[0] * 2 + kept * 0",
    )
    assert set(formulas) <= backward
