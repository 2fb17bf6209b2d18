"""What cuDNN works in, as a feature: told from keys as from tensors, of many operators as of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from folders import DATA

pytest.importorskip("sqlalchemy")
pytest.importorskip("torch")

import torch

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import read_parquet
from gpuledger.ops.predict.workspaces import NAMES, _row, held_by, workspace_features
from gpuledger.ops.workloads.rebuild import rebuild
from gpuledger.simulate.convolutions.convolution_guess import (
    OPERATIONS,
    guess_bytes,
    guess_many,
    workspace_of,
    workspaces_of,
)
from gpuledger.simulate.convolutions.convolution_rows import backward_row, forward_row
from gpuledger.simulate.convolutions.convolution_terms import key_of

pytestmark = pytest.mark.torch
DATABASE = DATA / "h200" / "operator_database.parquet"


@pytest.fixture(scope="module")
def keys() -> list[OperatorKey]:
    found = read_parquet(DATABASE).keys.values()
    return [key for key in found if key.name in ("convolution", "convolution_backward")][::29]


def test_a_key_has_the_row_of_its_tensors(keys: list[OperatorKey]) -> None:
    asked = {"convolution": forward_row, "convolution_backward": backward_row}
    for key in keys:
        assert _row(key) == asked[key.name](rebuild(key, "meta").args), key.text


@pytest.mark.parametrize("operation", range(len(OPERATIONS)))
def test_many_have_the_workspaces_that_each_has(operation: int, keys: list[OperatorKey]) -> None:
    rows = [key_of(row) for key in keys if (row := _row(key)) is not None]
    assert workspaces_of(rows, operation) == [workspace_of(row, operation) for row in rows]
    assert guess_many(rows[:20], operation) == [guess_bytes(row, operation) for row in rows[:20]]
    assert workspaces_of([], operation) == []


def test_other_operators_and_transposed_convolutions_have_none(keys: list[OperatorKey]) -> None:
    forward = next(key for key in keys if key.name == "convolution")
    turned = OperatorKey(forward.operator, (*forward.inputs[:6], True, *forward.inputs[7:]), forward.flags)
    odd = OperatorKey(forward.operator, forward.inputs[:2], forward.flags)
    relu = OperatorKey("aten.relu.default", forward.inputs[:1])
    assert held_by([turned, odd, relu]) == [(), (), ()]
    assert workspace_features((), work_of(relu)) == {}
    found = workspace_features(held_by([forward])[0], work_of(forward))
    assert set(found) == {"with_workspace", "workspace", "has_workspace"} <= set(NAMES)


@pytest.mark.parametrize("wide", [torch.contiguous_format, torch.channels_last])
def test_a_format_is_told_by_strides_as_torch_tells_it(wide: Any) -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        sizes = [int(size) for size in random.choice([1, 2, 3, 5], 4)]
        data = torch.empty(sizes, device="meta").contiguous(memory_format=wide)
        data = data.narrow(int(random.integers(4)), 0, 1) if random.random() < 0.3 else data
        row = forward_row((data, torch.empty(4, sizes[1], 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1))
        assert row is not None
        last = data.is_contiguous(memory_format=torch.channels_last)
        assert {0: data.is_contiguous(), 1: last, 2: not data.is_contiguous() or not last}[row[26]]
