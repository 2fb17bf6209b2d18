"""Memory inside compiled regions is on the modules that an eager run names, and the compiler is undisturbed."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from quick import quick_python
from recorded import Recorded, record_own
from torch import Tensor, nn
from torch.nn import functional as F

from gpuledger.analyze.view.options import ViewOptions
from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import read_run
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.show_text import TableOptions, show_lines
from gpuledger.services.runs import load

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # Dynamo reads attributes that warn
    pytest.mark.usefixtures("compiler_caches"),
]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 2)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        return weights[..., :1] * self.experts[0](x) + weights[..., 1:] * self.experts[1](x)


class Block(nn.Module):
    def __init__(self, width: int, inner: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2, self.inner = nn.LayerNorm(width), inner

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.inner(self.norm2(x))


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def transformer(width: int = 32) -> nn.Module:
    """Return a block with a perceptron and one with experts: one compilation for the modules of both."""
    return nn.Sequential(Block(width, mlp(width)), Block(width, Experts(width)), nn.Linear(width, 8))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def residual() -> nn.Module:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))
    return nn.Sequential(nn.Conv2d(3, 8, 3), *(Residual() for _ in range(2)), *head)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer": (transformer, (8, 64, 32)),
    "resnet": (residual, (8, 3, 34, 34)),
}
MODES = {"transformer": "max-autotune-no-cudagraphs"}


def train(name: str, *, compiled: bool) -> Recorded:
    make, shape = MODELS[name]

    def program(_: object) -> object:
        torch.manual_seed(0)
        net = make()
        if compiled:
            net.compile(mode=MODES.get(name))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _step in range(2):
            net(torch.randn(shape)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, optimizer

    torch._dynamo.reset()
    return record_own(program, steps=(1, 2))


def peak_by_module(run: Recorded) -> Counter[str]:
    """Return the bytes of the second step's peak by module."""
    changes: list[tuple[int, int, str]] = []
    for block in run.blocks:
        changes.append((block.alloc_index, block.bytes, block.module))
        if block.free_index is not None:
            changes.append((block.free_index, -block.bytes, block.module))
    now: Counter[str] = Counter()
    highest: Counter[str] = Counter()
    for _, size, module in sorted(changes):
        now[module] += size
        if now.total() > highest.total():
            highest = Counter(now)
    return highest


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_compiled_model_is_on_its_modules(name: str) -> None:
    compiled = train(name, compiled=True)
    peak = peak_by_module(compiled)
    assert peak[""] <= 0.03 * peak.total()
    assert compiled.manifest.compiled_unread is None
    assert not compiled.manifest.notes
    outermost = compiled.paths[0]
    activations: Counter[str] = Counter()
    for block in compiled.blocks:
        if block.category in ("activation", "temporary", "activation_gradient"):
            activations[block.module] += block.bytes
    assert activations[outermost] + activations[""] <= 0.03 * activations.total()
    eager = train(name, compiled=False)
    assert set(peak) - {""} <= set(peak_by_module(eager)) | {outermost}
    in_eager, in_compiled = (norms_with_gradients(run) for run in (eager, compiled))
    assert in_compiled <= in_eager
    assert bool(in_compiled) == bool(in_eager)  # a compiled norm can use memory of another gradient again


def norms_with_gradients(run: Recorded) -> set[str]:
    """Return the batch norms whose backward allocates. The convolution before each wants their gradient's layout."""
    norms = {row["path"] for row in run.tables["modules"] if row["class_name"] == "BatchNorm2d"}
    return {one.module for one in run.blocks if one.category == "activation_gradient"} & norms


PROGRAM = """
import json, sys
import torch
from torch import nn
from torch._inductor.codecache import PyCodeCache
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model = torch.compile(net)
for length in (4, 4, 4, 6, 6, *[8] * 12):
    model(torch.ones(length, 8)).sum().backward()
counters = torch._dynamo.utils.counters
files = sorted(module.__file__ for module in PyCodeCache.modules)
with open(sys.argv[1], "w") as out:
    found = {"stats": counters["stats"], "cache": counters["inductor"], "aot": counters["aot_autograd"]}
    json.dump({"files": files, **found}, out)
"""


def run_program(directory: Path, name: str, *before: str) -> dict[str, dict[str, int]]:
    """Return the counters of the compiler in a process in which it has compiled nothing yet."""
    script = directory / "program.py"
    script.write_text(PROGRAM)
    out = directory / f"{name}.json"
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}
    environment["XDG_CACHE_HOME"] = str(directory / "ours")
    subprocess.run([quick_python(), *before, str(script), str(out)], check=True, env=environment)
    found: dict[str, dict[str, int]] = json.loads(out.read_text())
    return found


@pytest.mark.timeout(1200)
def test_cache_keys_and_compilations_are_those_of_a_bare_run(tmp_path: Path) -> None:
    def recorded(name: str) -> dict[str, dict[str, int]]:
        place = str(tmp_path / name)
        return run_program(tmp_path, name, "-m", "gpuledger", "run", "-q", "--steps", "1:3", "--out", place)

    first, bare, again = recorded("first"), run_program(tmp_path, "bare"), recorded("again")
    assert first["stats"] == bare["stats"] == again["stats"]
    assert first["files"] == bare["files"] == again["files"]
    for later in (bare, again):
        assert not any("miss" in name for name in {**later["cache"], **later["aot"]})
        assert later["aot"]["autograd_cache_hit"] == first["aot"]["autograd_cache_miss"]
    manifests = [read_run(tmp_path / f"{name}.ledger").rank().manifest for name in ("first", "again")]
    assert [manifest.compiled_unread for manifest in manifests] == [None, None]
    for name in ("first", "again"):
        check_fusions(tmp_path / f"{name}.ledger")


def check_fusions(place: Path) -> None:
    """Check the table of compiled kernels: what is in it, and that its times are those of the modules."""
    view = build_view(load(place), ViewOptions(group_by="fusion")).highest
    kernels = view.fusions
    assert {path for one in kernels for path in one.modules} == {"0", "1", "2"}
    assert all(one.nodes and one.moved_bytes and one.time_ns > 0 for one in kernels)
    assert {source.rpartition(":")[0].rpartition("/")[2] for one in kernels for source in one.sources} <= {
        *("container.py", "linear.py", "activation.py", "program.py")
    }
    assert view.times is not None
    by_module = sum(one.time_ns for one in view.times.accounts if one.module in ("0", "1", "2"))
    assert sum(one.time_ns for one in kernels) == pytest.approx(by_module)
    text = "\n".join(show_lines(build_view(load(place), ViewOptions(group_by="fusion")), TableOptions(), Terminal()))
    assert "by fusion" in text
    assert "extern_kernels" in text
