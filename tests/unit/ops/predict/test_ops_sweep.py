"""Sweeps: every configuration runs, and a training's gradients are those that autograd asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("torch")

import torch
from click.testing import CliRunner, Result
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpuledger.cli.main import main
from gpuledger.errors import UsageError
from gpuledger.ops.predict.sweep import Grid, sweep
from gpuledger.ops.predict.sweep_keys import OPERATORS, keys_at
from gpuledger.ops.workloads.rebuild import rebuild
from gpuledger.ops.workloads.workload import read_workload

pytestmark = pytest.mark.torch


def ops(*words: str) -> Result:
    return CliRunner().invoke(main, ["ops", *words])


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_swept_configuration_runs(operator: str) -> None:
    grid = Grid((2,), (5, 8), (4, 6), (1, 3), (1, 2), (1, 2), ("float32", "bfloat16"), (0.0, 0.5), (0.0, 0.9))
    workload = sweep(operator, grid, sample=12)
    assert len({use.key.digest for use in workload.uses}) == 12
    for use in workload.uses:
        rebuild(use.key)()


_SMALL: dict[str, Any] = {
    "batch": 2, "into": 4, "out": 6, "channels": 4, "size": 5, "kernel": 3, "stride": 2, "groups": 2, "bias": 1,
    "pieces": 3, "dtype": "float32", "sparsity": 0.0, "weight_sparsity": 0.0,
}  # fmt: skip


class _Launched(TorchDispatchMode):
    """The names and the tensors' shapes of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated
        self.calls: list[tuple[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
        self.calls.append((str(function), [(tuple(one.shape), tuple(one.stride())) for one in tensors]))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_gradients_of_a_sweep_are_those_that_autograd_asks_for(operator: str) -> None:
    forward, *backward = keys_at(OPERATORS[operator], _SMALL, train=True)
    call = rebuild(forward)
    leaves = [one.requires_grad_() for one in tree_leaves(call.args) if isinstance(one, torch.Tensor)]
    results = call.function(*call.args, **call.kwargs)
    result = results if isinstance(results, torch.Tensor) else results[0]
    with _Launched() as launched:
        torch.autograd.grad(result, leaves, torch.ones_like(result).contiguous())
    assert forward.flags["grad"]
    for key in backward:
        shapes = [(tuple(one["shape"]), tuple(one["stride"])) for one in key.tensors()]
        assert (key.operator, shapes) in launched.calls
        rebuild(key)()
    products = [name for name, _ in launched.calls if "backward" in name or name.startswith(("aten.mm", "aten.bmm"))]
    assert sorted(products) == sorted(key.operator for key in backward if "sum" not in key.operator)


def test_impossible_combinations_are_left_out_and_a_sample_is_the_same_again() -> None:
    grid = Grid(channels=(6, 9), groups=(1, 2, 3), kernel=(1, 3))
    keys = [use.key for use in sweep("conv2d", grid).uses]
    assert len(keys) == 2 * (4 + 1 + 4)  # 9 channels are not two groups
    assert sweep("conv2d", grid, sample=5, seed=3) == sweep("conv2d", grid, sample=5, seed=3)
    assert sweep("conv2d", grid, sample=5, seed=3) != sweep("conv2d", grid, sample=5, seed=4)


@pytest.mark.parametrize(
    ("operator", "grid", "words"),
    [
        ("conv9d", Grid(), "sweep conv9d: unknown"),
        ("relu", Grid(dtype=("float99",)), "--dtype float99"),
        ("relu", Grid(sparsity=(1.0,)), "--sparsity 1.0"),
        ("relu", Grid(batch=(0,)), "--batch"),
        ("conv2d", Grid(channels=(3,), groups=(2,)), "no combination"),
        ("relu", Grid(batch=tuple(range(1, 2000)), sizes=tuple(range(1, 2000))), "combinations"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(operator: str, grid: Grid, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        sweep(operator, grid)


def test_operators_that_differ_in_zeros_alone_are_told_apart() -> None:
    texts = {use.key.text for use in sweep("relu", Grid(sparsity=(0.0, 0.5))).uses}
    assert len(texts) == 2
    assert any("50 % zeros" in text for text in texts)


def test_a_sweep_is_written_once(tmp_path: Path) -> None:
    place = str(tmp_path / "s.workload.json")
    words = ("sweep", "conv2d", "--channels", "8,16", "--kernel", "1,3", "--sparsity", "0,0.5", "-o", place)
    result = ops(*words)
    assert result.exit_code == 0, result.stderr
    assert len(read_workload(Path(place)).uses) == 16
    assert ops(*words).exit_code == 2
    assert ops("sweep", "conv2d", "--kernel", "one").exit_code == 2
    assert ops("sweep", "conv2d", "--bias", "2").exit_code == 2


def test_a_sweep_of_a_training_has_the_gradients_and_a_hot_one_says_so(tmp_path: Path) -> None:
    place = tmp_path / "s.workload.json"
    assert ops("sweep", "depthwise", "--channels", "8,16", "--train", "--warm-cache", "-o", str(place)).exit_code == 0
    workload = read_workload(place)
    assert (workload.name, workload.mode) == ("sweep-depthwise-training-hot", "training")
    assert [use.key.name for use in workload.uses] == ["convolution", "convolution_backward"] * 2
    assert {use.reuse_bytes for use in workload.uses} == {0.0}
