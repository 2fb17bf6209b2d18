"""What calls without gradients keep for later calls is a cache; what they return, and what they are given, is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from recorded import Recorded, read_recorded, record_own
from torch import nn
from torch.func import functional_call, vmap

from gpuledger import load, record

pytestmark = pytest.mark.torch

ROWS, WIDTH, LENGTH, STEPS = 4, 64, 16, 3
LAYER_BYTES = ROWS * LENGTH * WIDTH * 4
"""Size of the keys, or of the values, that one layer keeps at full length."""


class Cache:
    """Keys and values of each layer, as libraries hold them: an object, and no container of Python's."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


class Attention(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor, cache: Cache, pair: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if pair is None:
            before = cache.layers.get(self.number)
            k, v = (k, v) if before is None else (torch.cat([before[0], k], 1), torch.cat([before[1], v], 1))
            cache.layers[self.number] = k, v = k.contiguous(), v.contiguous()
        else:
            pair[0][:, : k.shape[1]], pair[1][:, : v.shape[1]] = k, v
            k, v = pair
        return torch.softmax(q @ k.transpose(1, 2), -1) @ v


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(number) for number in range(2))
        self.head = nn.Linear(WIDTH, 128)

    def forward(
        self, x: torch.Tensor, cache: Cache, pairs: list[tuple[torch.Tensor, torch.Tensor]] | None = None
    ) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = x + layer(x, cache, None if pairs is None else pairs[number])
        return self.head(x)


def test_keys_and_values_that_each_call_replaces() -> None:
    def program(_: object) -> object:
        model, cache = Decoder().eval(), Cache()
        with torch.no_grad():
            outputs = model(torch.ones(ROWS, LENGTH, WIDTH), cache)
            for _ in range(STEPS - 1):
                outputs = model(torch.ones(ROWS, 1, WIDTH), cache)
        return model, cache, outputs

    run = record_own(program)
    kept = [block for block in run.of("cache") if block.kept]
    assert {block.module for block in run.of("cache")} == {"layers.0", "layers.1"}
    assert sorted(block.bytes for block in kept) == [ROWS * (LENGTH + STEPS - 1) * WIDTH * 4] * 4
    assert sorted(block.bytes for block in run.of("cache", step=1)) == [LAYER_BYTES] * 4
    assert not run.of("cache", module="head")


@pytest.mark.parametrize("made_in", [torch.no_grad, torch.inference_mode])
def test_keys_and_values_that_the_program_makes(made_in: Callable[[], AbstractContextManager[object]]) -> None:
    def program(_: object) -> object:
        model = Decoder().eval()
        with made_in():
            pairs = [(torch.zeros(ROWS, LENGTH, WIDTH), torch.zeros(ROWS, LENGTH, WIDTH)) for _ in range(2)]
            for _ in range(STEPS):
                model(torch.ones(ROWS, LENGTH - 1, WIDTH), Cache(), pairs)
        return model, pairs

    run = record_own(program)
    assert [block.bytes for block in run.of("cache") if block.kept] == [LAYER_BYTES] * 4
    assert {block.name for block in run.of("cache") if block.kept} == {"pairs[*][*]"}
    assert not [block for block in run.of("cache") if not block.kept]


def empty() -> torch.Tensor:
    return torch.zeros(ROWS, LENGTH, WIDTH)


class Pages:
    """Keys and values of all layers, which only the program holds."""

    def __init__(self, _: nn.Module) -> None:
        self.keys, self.values = empty(), empty()

    def of(self, _: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys, self.values

    def write(self, layer: nn.Module, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        pages = self.of(layer)
        pages[0].view(-1, WIDTH).index_copy_(0, slots, keys)
        pages[1].view(-1, WIDTH)[slots] = values


class Buffers(Pages):
    def __init__(self, layer: nn.Module) -> None:
        layer.register_buffer("keys", empty())
        layer.register_buffer("values", empty(), persistent=False)

    def of(self, layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        return layer.get_buffer("keys"), layer.get_buffer("values")


class Attributes(Pages):
    def __init__(self, layer: nn.Module) -> None:
        layer.pair = empty(), empty()  # type: ignore[assignment]

    def of(self, layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        pair: tuple[torch.Tensor, torch.Tensor] = layer.pair  # type: ignore[assignment]
        return pair


class Writing(nn.Module):
    """Writes keys and values into what is made before the first call."""

    def __init__(self, pages: type[Pages]) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))
        self.kept = [pages(self)]

    def forward(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x) * self.scale).chunk(3, dim=-1)
        filled = torch.zeros(ROWS, LENGTH, WIDTH)
        filled[:, 0] = q
        self.kept[0].write(self, slots, k, v)
        keys, values = self.kept[0].of(self)
        return torch.softmax(filled @ keys.transpose(1, 2), -1) @ values


@pytest.mark.parametrize("made_in", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("pages", "names"),
    [(Pages, {"model.kept[*].keys", "model.kept[*].values"}), (Buffers, {"keys", "values"}), (Attributes, {"pair[*]"})],
)
def test_what_calls_write_is_a_cache_whatever_holds_it(
    pages: type[Pages], names: set[str], made_in: Callable[[], AbstractContextManager[object]]
) -> None:
    def program(_: object) -> object:
        with made_in():
            model = Writing(pages)
            for token in range(STEPS):
                model(torch.ones(ROWS, WIDTH), torch.arange(ROWS) * LENGTH + token)
        return model

    run = record_own(program)
    assert [block.bytes for block in run.of("cache")] == [LAYER_BYTES] * 2
    assert {block.name for block in run.of("cache")} == names
    assert {"scale", "norm.running_mean", "norm.running_var"} <= {block.name for block in run.of("buffer")}


class Returning(nn.Module):
    """Returns its keys and values beside its output, as functions of pairs do, and is given them by the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def forward(
        self, x: torch.Tensor, pairs: list[tuple[torch.Tensor, torch.Tensor]] | None
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        kept = []
        for number, layer in enumerate(self.qkv):
            q, k, v = layer(x).chunk(3, dim=-1)
            if pairs is not None:
                k, v = torch.cat([pairs[number][0], k], 1), torch.cat([pairs[number][1], v], 1)
            x = x + torch.softmax(q @ k.transpose(1, 2), -1) @ v
            kept.append((k, v))
        return x, kept


def test_keys_and_values_that_a_call_returns_and_the_next_one_is_given() -> None:
    def program(_: object) -> object:
        model = Returning().eval()
        with torch.no_grad():
            x, pairs = model(torch.ones(ROWS, LENGTH, WIDTH), None)
            for _ in range(STEPS):
                x, pairs = model(torch.ones(ROWS, 1, WIDTH), pairs)
        return model, pairs, x

    run = record_own(program)
    assert [block.bytes for block in run.of("cache", step=1)] == [3 * LAYER_BYTES] * 2, "both are views of it"
    for step in range(2, STEPS + 1):
        assert [block.bytes for block in run.of("cache", step=step)] == [ROWS * (LENGTH + step - 1) * WIDTH * 4] * 4


def kept_outputs(run_model: Callable[[nn.Module, list[torch.Tensor]], None]) -> Recorded:
    def program(_: object) -> object:
        model, outputs = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()).eval(), list[torch.Tensor]()
        with torch.no_grad():
            for _ in range(STEPS):
                run_model(model, outputs)
        return model, outputs

    return record_own(program)


def test_outputs_that_the_program_collects() -> None:
    run = kept_outputs(lambda model, outputs: outputs.append(model(torch.ones(ROWS, WIDTH))))
    assert not run.of("cache")
    assert len([block for block in run.of("activation") if block.kept]) == STEPS


def test_outputs_in_a_dict() -> None:
    class InDict(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> dict[str, tuple[torch.Tensor, ...]]:
            return {"states": (self.inner(x), x + 1)}

    def call(model: nn.Module, outputs: list[torch.Tensor]) -> None:
        outputs += InDict(model)(torch.ones(ROWS, WIDTH))["states"]

    assert not kept_outputs(call).of("cache")


def test_a_training_with_a_teacher_has_none() -> None:
    def program(_: object) -> object:
        model, teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            x = torch.ones(ROWS, WIDTH)
            with torch.no_grad():
                wanted = teacher(x)
            (model(x) - wanted).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, teacher

    assert not record_own(program).of("cache")


def test_a_call_that_fails_leaves_activations(tmp_path: Path) -> None:
    """What was alive when the program failed would have been freed by the same call."""

    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            raise ValueError(x.shape)

    model = Failing().eval()
    with pytest.raises(ValueError, match="64"), record(out=tmp_path / "run", devices="cpu"), torch.no_grad():
        model(torch.ones(ROWS, WIDTH))
    run = read_recorded(load(tmp_path / "run.ledger").rank())
    assert {block.category for block in run.blocks if block.module == "first" and block.phase == "evaluation"} == {
        "activation"
    }


def test_what_a_call_inside_a_transform_returns_is_no_cache() -> None:
    def program(_: object) -> object:
        model, results = nn.Linear(8, 4), torch.zeros(())
        population = torch.randn(3, 4, 8)
        with torch.no_grad():
            for _step in range(4):
                results = vmap(lambda one: functional_call(model, {"weight": one}, (torch.ones(5, 8),)))(population)
        return model, results, population

    assert not record_own(program).of("cache")
