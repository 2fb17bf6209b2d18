"""Data sets on the device that a program takes its batches from are inputs. What else is indexed is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorded import Recorded, record_own
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

pytestmark = pytest.mark.torch

ROWS, WIDTH = 400, 8

Batch = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


def by_random_numbers(data: Tensor, labels: Tensor, _: int) -> tuple[Tensor, Tensor]:
    at = torch.randint(0, ROWS, (16,))
    return data[at], labels[at]


def by_index_select(data: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
    at = torch.arange(step, step + 16)
    return data.index_select(0, at) / 2, labels.index_select(0, at)


def by_slices(data: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
    return data[step : step + 16].clone(), labels[step : step + 16]


def by_a_stack(data: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
    return torch.stack([data[step + at] for at in range(16)]), torch.stack([labels[step + at] for at in range(16)])


def train(batch: Batch) -> Recorded:
    def program(_: object) -> object:
        data, labels, unused = torch.randn(ROWS, WIDTH), torch.randint(0, 4, (ROWS,)), torch.randn(ROWS, 3)
        table = torch.randn(90)
        model = nn.Linear(WIDTH, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch(data, labels, step)
            cross_entropy(model(x), y).backward()
            optimizer.step()
            table[step : step + 4] += table[step + 4 : step + 8]
        return data, labels, unused, table, model, optimizer

    return record_own(program)


@pytest.mark.parametrize("batch", [by_random_numbers, by_index_select, by_slices, by_a_stack])
def test_a_data_set_is_an_input(batch: Batch) -> None:
    run = train(batch)
    inputs = {(block.name, block.bytes) for block in run.of("input")}
    assert {("data", 4 * ROWS * WIDTH), ("labels", 8 * ROWS)} <= inputs
    assert {("unused", 12 * ROWS), ("table", 360)} <= {(block.name, block.bytes) for block in run.of("other")}
    found = run.manifest.inputs
    assert found is not None
    assert (found.shape, found.is_part) == ((16, WIDTH), True)


def test_a_whole_tensor_that_a_batch_is_computed_with_is_no_data_set() -> None:
    def program(_: object) -> object:
        mean, data = torch.randn(WIDTH), torch.randn(ROWS, WIDTH)
        model = nn.Linear(WIDTH, 4)
        for step in range(3):
            model(data[step : step + 16] - mean).sum().backward()
        return mean, data, model

    run = record_own(program)
    assert [block.name for block in run.of("other", bytes=4 * WIDTH)] == ["mean"]
    assert [block.name for block in run.of("input", bytes=4 * ROWS * WIDTH)] == ["data"]


def test_a_copy_of_weights_in_one_tensor_is_no_data_set() -> None:
    def program(_: object) -> object:
        model = nn.Linear(WIDTH, 4)
        average = torch.zeros(5 * WIDTH)
        for _step in range(3):
            model(torch.ones(16, WIDTH)).sum().backward()
            with torch.no_grad():
                model.weight.lerp_(average[: 4 * WIDTH].view(4, WIDTH), 0.1)
        return model, average

    assert [block.name for block in record_own(program).of("other", bytes=20 * WIDTH)] == ["average"]


def test_a_table_that_the_program_writes_itself_is_no_data_set() -> None:
    def program(_: object) -> object:
        values, model = torch.zeros(50, 4), nn.Linear(WIDTH, 4).eval()
        with torch.no_grad():
            for step in range(4):
                action = model(torch.ones(1, WIDTH)).argmax()
                values[step, action] += 0.1 * (1 + values[step + 1].max() - values[step, action])
        return values, model

    assert [block.name for block in record_own(program).of("other", bytes=800)] == ["values"]


def test_nested_and_sparse_tensors_outside_of_modules_change_nothing() -> None:
    def program(_: Any) -> object:
        model = nn.Linear(WIDTH, 4)
        for _step in range(2):
            sparse = torch.eye(WIDTH).to_sparse() * 2
            model(sparse.to_dense()).sum().backward()
        return model

    assert {block.bytes for block in record_own(program).of("weight")} == {16, 16 * WIDTH}
