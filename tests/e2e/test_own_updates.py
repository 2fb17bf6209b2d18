"""Trainings that update their weights by themselves: what is optimizer state, and what only looks like it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from recorded import Recorded, record_own
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

pytestmark = pytest.mark.torch

Update = Callable[[Tensor, Tensor], None]
"""Updates a weight with its gradient."""

STATE = ("weight", 512), ("bias", 16)
KINDS = "weight", "gradient", "optimizer_state"


def weights_of(model: nn.Module) -> list[Tensor]:
    return [*model.parameters()]


def train(model: nn.Module, update: Callable[[list[Tensor], list[Tensor]], None], steps: int = 4) -> None:
    for _ in range(steps):
        model.zero_grad()
        model(torch.ones(4, 32)).square().sum().backward()
        with torch.no_grad():
            weights = weights_of(model)
            update(weights, [weight.grad for weight in weights if weight.grad is not None])


def record_updates(make: Callable[[nn.Module], tuple[Update, object]]) -> Recorded:
    """Record a training that updates each weight with what ``make`` returns, beside what it keeps."""

    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        update, kept = make(model)

        def update_all(weights: list[Tensor], gradients: list[Tensor]) -> None:
            for weight, gradient in zip(weights, gradients, strict=True):
                update(weight, gradient)

        train(model, update_all)
        return model, kept

    return record_own(program)


def states(run: Recorded) -> list[tuple[str, int]]:
    return sorted((block.name, block.bytes) for block in run.of("optimizer_state"))


def adam(model: nn.Module) -> tuple[Update, object]:
    state = {p: {"m": torch.zeros_like(p), "v": torch.zeros_like(p)} for p in weights_of(model)}

    def update(weight: Tensor, gradient: Tensor) -> None:
        m, v = state[weight]["m"], state[weight]["v"]
        m.mul_(0.9).add_(gradient, alpha=0.1)
        v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        weight.mul_(0.999).sub_(0.01 * m / (v.sqrt() + 1e-8))

    return update, state


def momentum_with_decay_and_clipping(model: nn.Module) -> tuple[Update, object]:
    buffers = {p: torch.zeros_like(p) for p in weights_of(model)}

    def update(weight: Tensor, gradient: Tensor) -> None:
        gradient.mul_(torch.clamp(1 / gradient.norm(), max=1.0))
        direction = gradient + 0.1 * weight
        buffers[weight].mul_(0.9).add_(direction)
        weight.data -= 0.01 * (direction + 0.9 * buffers[weight])

    return update, buffers


def replaced_data(model: nn.Module) -> tuple[Update, object]:
    buffers: dict[Tensor, Tensor] = {}

    def update(weight: Tensor, gradient: Tensor) -> None:
        before = buffers.get(weight)
        buffers[weight] = gradient.clone() if before is None else 0.9 * before + gradient
        weight.data = weight.data - 0.01 * buffers[weight]

    return update, buffers


def scaled_by_statistics(model: nn.Module) -> tuple[Update, object]:
    means = {p: torch.zeros_like(p) for p in weights_of(model)}

    def update(weight: Tensor, gradient: Tensor) -> None:
        means[weight].mul_(0.9).add_(gradient.abs(), alpha=0.1)
        weight.sub_(0.01 / (1 + means[weight].mean()) * gradient)

    return update, means


def clipped_by_the_norm_of_all(model: nn.Module) -> tuple[Update, object]:
    update_with_momentum, buffers = momentum_with_decay_and_clipping(model)

    def update(weight: Tensor, gradient: Tensor) -> None:
        norm = torch.stack([p.grad.norm() for p in weights_of(model) if p.grad is not None]).norm()
        update_with_momentum(weight, gradient * torch.clamp(1 / norm, max=1.0))

    return update, buffers


@pytest.mark.parametrize(
    ("make", "each"),
    [
        (adam, 2),
        (momentum_with_decay_and_clipping, 1),
        (scaled_by_statistics, 1),
        (clipped_by_the_norm_of_all, 1),
    ],
)
def test_what_carries_gradients_to_the_next_update_is_optimizer_state(
    make: Callable[[nn.Module], tuple[Update, object]], each: int
) -> None:
    run = record_updates(make)
    assert states(run) == sorted(each * STATE)
    assert {block.module for block in run.of("optimizer_state")} == {block.module for block in run.of("weight")}


def test_state_that_each_update_makes_anew() -> None:
    run = record_updates(replaced_data)
    assert states(run) == sorted(3 * STATE)  # nothing reads that of the last update
    assert {(block.name, block.bytes) for block in run.of("weight")} == set(STATE)


def factored(model: nn.Module) -> tuple[Update, object]:
    """Keep second moments as means of rows and columns, as Adafactor does."""
    rows = {p: torch.zeros(p.shape[0]) for p in weights_of(model)}
    columns = {p: torch.zeros(p.shape[-1]) for p in weights_of(model) if p.dim() == 2}

    def update(weight: Tensor, gradient: Tensor) -> None:
        squared = gradient.square() + 1e-30
        if weight.dim() == 1:
            rows[weight].mul_(0.9).add_(squared, alpha=0.1)
            scale = rows[weight].rsqrt()
        else:
            rows[weight].mul_(0.9).add_(squared.mean(1), alpha=0.1)
            columns[weight].mul_(0.9).add_(squared.mean(0), alpha=0.1)
            scale = (rows[weight] / rows[weight].mean()).rsqrt()[:, None] * columns[weight].rsqrt()[None, :]
        weight.sub_(0.01 * scale * gradient)

    return update, (rows, columns)


def test_factored_state_has_the_names_of_its_weights() -> None:
    assert states(record_updates(factored)) == [("bias", 16), ("weight", 16), ("weight", 128)]


def preconditioned(model: nn.Module) -> tuple[Update, object]:
    """Keep products of gradients with each other, as Shampoo does."""
    products = {p: torch.eye(p.shape[0]) for p in weights_of(model)}

    def update(weight: Tensor, gradient: Tensor) -> None:
        columns = gradient.view(weight.shape[0], -1)
        products[weight].add_(columns @ columns.T)
        weight.sub_(0.01 * torch.linalg.solve(products[weight], columns).view_as(weight))

    return update, products


def test_products_of_gradients_are_state() -> None:
    assert states(record_updates(preconditioned)) == [("bias", 64), ("weight", 64)]


def test_state_in_one_buffer_for_all_weights_has_the_name_of_its_variable() -> None:
    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        m, v = torch.zeros(132), torch.zeros(132)
        left: list[Tensor] = []

        def update(weights: list[Tensor], gradients: list[Tensor]) -> None:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            m.mul_(0.9).add_(flat, alpha=0.1)
            v.mul_(0.99).addcmul_(flat, flat, value=0.01)
            change = 0.01 * m / (v.sqrt() + 1e-8)
            left[:] = [flat, change]
            for weight, part in zip(weights, change.split([one.numel() for one in weights]), strict=True):
                weight.sub_(part.view_as(weight))

        train(model, update)
        return model, m, v, left

    run = record_own(program)
    assert states(run) == [("m", 528), ("v", 528)]
    assert {(block.name, block.bytes) for block in run.of("weight")} == set(STATE)
    assert [block.bytes for block in run.of("input")] == 4 * [512]  # what is left of an update is none
    assert sum(block.bytes == 528 for block in run.of("other")) >= 6


def test_operators_on_lists() -> None:
    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        momenta = [torch.zeros_like(p) for p in model.parameters()]

        def update(weights: list[Tensor], gradients: list[Tensor]) -> None:
            torch._foreach_lerp_(momenta, gradients, 0.1)
            torch._foreach_sub_(weights, torch._foreach_mul(momenta, 0.01))

        train(model, update)
        return model, momenta

    assert states(record_own(program)) == sorted(STATE)


def average(model: nn.Module) -> tuple[Update, dict[Tensor, Tensor]]:
    averages = {p: p.detach().clone() for p in weights_of(model)}

    def update(weight: Tensor, gradient: Tensor) -> None:
        weight.sub_(gradient, alpha=0.01)
        averages[weight].mul_(0.99).add_(weight, alpha=0.01)

    return update, averages


def average_that_is_swapped_in(model: nn.Module) -> tuple[Update, object]:
    update_average, averages = average(model)

    def update(weight: Tensor, gradient: Tensor) -> None:
        update_average(weight, gradient)
        backup = weight.detach().clone()
        weight.copy_(averages[weight])
        weight.copy_(backup)

    return update, averages


def anchor(model: nn.Module) -> tuple[Update, object]:
    anchors = {p: p.detach().clone() for p in weights_of(model)}

    def update(weight: Tensor, gradient: Tensor) -> None:
        weight.sub_(0.01 * (gradient + 0.1 * (weight - anchors[weight])))
        anchors[weight].lerp_(weight, 0.5)

    return update, anchors


def intermediate_result(model: nn.Module) -> tuple[Update, object]:
    results = {p: torch.zeros_like(p) for p in weights_of(model)}

    def update(weight: Tensor, gradient: Tensor) -> None:
        torch.mul(gradient, 0.01, out=results[weight])
        weight.sub_(results[weight])

    return update, results


def statistics_of_gradients(model: nn.Module) -> tuple[Update, object]:
    means = {p: torch.zeros_like(p) for p in weights_of(model)}

    def update(weight: Tensor, gradient: Tensor) -> None:
        means[weight].mul_(0.9).add_(gradient.abs(), alpha=0.1)
        assert means[weight].mean().item() > 0
        weight.sub_(0.01 * gradient)

    return update, means


def accumulated_gradients(model: nn.Module) -> tuple[Update, object]:
    sums = {p: torch.zeros_like(p) for p in weights_of(model)}
    calls: list[int] = []

    def update(weight: Tensor, gradient: Tensor) -> None:
        calls.append(0)
        sums[weight].add_(gradient)
        if len(calls) % 4 > 1:  # two weights, and two batches for an update
            weight.sub_(0.01 * sums[weight])
            sums[weight].zero_()

    return update, sums


@pytest.mark.parametrize(
    "make",
    [average, average_that_is_swapped_in, anchor, intermediate_result, statistics_of_gradients, accumulated_gradients],
)
def test_what_only_looks_like_optimizer_state(make: Callable[[nn.Module], tuple[Update, object]]) -> None:
    run = record_updates(make)
    assert states(run) == []
    assert {(block.name, block.bytes) for block in run.of("weight")} == set(STATE)


def test_weights_that_a_function_returns_anew_are_weights() -> None:
    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        params = {name: weight.detach() for name, weight in model.named_parameters()}
        momenta = {name: torch.zeros_like(weight) for name, weight in params.items()}

        def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(model, params, (x,)).square().sum()

        for _step in range(4):
            gradients = grad(loss)(params, torch.ones(4, 32))
            momenta = {name: 0.9 * momenta[name] + gradients[name] for name in params}
            params = {name: weight - 0.01 * momenta[name] for name, weight in params.items()}
        return model, params

    run = record_own(program)
    weights = [(block.name, block.bytes) for block in run.of("weight")]
    assert sorted(weights) == sorted(5 * STATE)  # those of the model, and four that stood in for them
    assert states(run) == sorted(2 * STATE)  # of the parameters that were detached


def test_plain_tensors_that_are_differentiated_and_updated_are_weights() -> None:
    def program(_: object) -> object:
        w = torch.randn(8, 2, requires_grad=True)
        noise = torch.randn(4, 2, requires_grad=True)
        for _step in range(3):
            slope, _ = torch.autograd.grad((torch.ones(4, 8) @ w + noise).square().sum(), [w, noise])
            with torch.no_grad():
                w -= 0.01 * slope
        return w, noise

    assert [(block.name, block.bytes) for block in record_own(program).of("weight")] == [("w", 64)]


def test_other_tensors_have_the_names_of_their_variables() -> None:
    def program(_: object) -> object:
        model, memory = nn.Linear(8, 2, bias=False), deque([torch.ones(3), torch.ones(3)])
        target = {"weight": model.weight.detach().clone()}
        by_weight: dict[Any, Tensor] = {model.weight: torch.ones(5)}
        for _step in range(2):
            model(torch.ones(4, 8)).sum().backward()
        return memory, target, by_weight

    run = record_own(program)
    found = {(block.name, block.bytes) for block in run.of("other")}
    assert {("memory[*]", 12), ("target['weight']", 64), ("by_weight[*]", 20)} <= found


def test_a_tensor_has_the_name_of_the_whole_and_not_of_a_part() -> None:
    def fit(model: nn.Module, part: Tensor, rest: Tensor) -> None:
        for _step in range(2):
            model(rest + part.sum()).sum().backward()

    def program(_: object) -> object:
        model, data = nn.Linear(8, 2, bias=False), torch.ones(100, 8)
        fit(model, data[:20], data[20:].clone())
        return data

    run = record_own(program)
    assert ("data", 3200) in {(block.name, block.bytes) for block in run.of("input")}
    assert ("rest", 2560) in {(block.name, block.bytes) for block in run.of("other")}


def test_plain_tensors_of_modules_belong_to_the_modules() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 8, bias=False)
            self.keys, self._values, self.seen = torch.zeros(9, 8), torch.zeros(9, 7), [torch.zeros(9, 6)]

        def forward(self, x: Tensor) -> Tensor:
            self.keys[:4] = self.project(x)
            self.last = self.keys + 1
            return self.last

    def program(_: object) -> object:
        model = nn.Sequential(Attention(), Attention()).eval()
        tokens = torch.ones(4, 8)
        with torch.no_grad():
            for _step in range(3):
                model[0](tokens)
        return model

    run = record_own(program)
    found = {(block.module, block.name, block.bytes) for block in run.of("other")}
    names = {("_values", 252), ("seen[*]", 216)}
    assert found == {(module, f"{module}.{name}", size) for module in ("0", "1") for name, size in names} | {
        ("1", "1.keys", 288)  # which nothing calls
    }
    assert {(block.module, block.name, block.bytes) for block in run.of("cache")} == {("0", "0.keys", 288)}
    assert {block.name for block in run.of("input")} == {"tokens"}
    assert {(block.module, block.name) for block in run.of("activation") if block.bytes == 288} == {("0", "")}


def test_tensors_that_stand_in_for_parameters_are_weights_without_gradients_too() -> None:
    def program(_: object) -> object:
        model, hyper = nn.Linear(32, 4, bias=False), nn.Linear(1, 128, bias=False)
        population = torch.randn(3, 4, 32)
        computed = hyper(torch.ones(1)).view(4, 32)
        with torch.no_grad():
            vmap(lambda weight: functional_call(model, {"weight": weight}, (torch.ones(5, 32),)))(population)
        functional_call(model, {"weight": computed}, (torch.ones(5, 32),)).sum().backward()
        return model, hyper, population, computed

    weights = {(block.name, block.bytes) for block in record_own(program).of("weight")}
    assert weights == {("hyper.weight", 512), ("model.weight", 512), ("model.weight", 1536)}


def test_weights_of_an_ensemble_are_those_of_the_module_that_computes_with_them() -> None:
    """An optimizer updates stacked weights in a dict. Weight, gradient and state of each have one name and module."""

    def program(_: object) -> object:
        models = [nn.Linear(32, 4) for _ in range(3)]
        params, buffers = stack_module_state(models)
        base, other = nn.Linear(32, 4).to("meta"), nn.Parameter(torch.ones(8))
        optimizer = torch.optim.SGD([*params.values(), other], lr=0.1, momentum=0.9)
        for _step in range(3):
            made = vmap(lambda own, x: functional_call(base, own, (x,)))(params, torch.ones(3, 4, 32))
            optimizer.zero_grad()
            (made.square().sum() * other.sum()).backward()
            optimizer.step()
        return models, params, buffers, base, other, optimizer

    run = record_own(program)
    for size_bytes, name, module in ((3 * 512, "weight", "base"), (3 * 16, "bias", "base"), (32, "other", "")):
        found = {kind: {(one.name, one.module) for one in run.of(kind, bytes=size_bytes)} for kind in KINDS}
        assert found == {kind: {(name, module)} for kind in KINDS}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_and_sparse_tensors_between_updates_change_nothing() -> None:
    def make(model: nn.Module) -> tuple[Update, object]:
        update, kept = momentum_with_decay_and_clipping(model)

        def update_beside_others(weight: Tensor, gradient: Tensor) -> None:
            nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
            nested = nested * 2 + nested
            sparse = torch.eye(4).to_sparse() * 3
            update(weight, gradient + 0 * sparse.to_dense().sum() * nested.to_padded_tensor(0.0).sum())

        return update_beside_others, kept

    assert states(record_updates(make)) == sorted(STATE)


def test_what_the_last_functional_update_leaves_are_weights() -> None:
    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        weights = {name: weight.detach() for name, weight in model.named_parameters()}

        def loss(weights: dict[str, Tensor]) -> Tensor:
            found: Tensor = functional_call(model, weights, (torch.ones(4, 32),)).square().sum()
            return found

        for _step in range(3):
            gradients = grad(loss)(weights)
            weights = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
        return model, weights

    run = record_own(program)
    last = [block for block in run.blocks if block.kept and block.module == "Linear" and block.step > 1]
    found = {(block.name, block.bytes) for block in last if block.category == "weight"}
    assert found == set(STATE)


@pytest.mark.parametrize(
    ("make", "each"), [(adam, 2), (scaled_by_statistics, 1), (average, 0), (intermediate_result, 0)]
)
def test_an_update_in_a_hook_is_one_as_after_backward(
    make: Callable[[nn.Module], tuple[Update, object]], each: int
) -> None:
    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        update, kept = make(model)

        def in_hook(weight: Tensor) -> None:
            assert weight.grad is not None
            with torch.no_grad():
                update(weight, weight.grad)
            weight.grad = None

        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(in_hook)
        for _step in range(4):
            model(torch.ones(4, 32)).square().sum().backward()
        return model, kept

    run = record_own(program)
    assert states(run) == sorted(each * STATE)
    assert {(block.name, block.bytes) for block in run.of("weight")} == set(STATE)
    assert {(block.name, block.module, block.bytes) for block in run.of("gradient")} == {
        (name, "Linear", size_bytes) for name, size_bytes in STATE
    }


def test_autograd_makes_no_copy_of_a_gradient_with_hooks() -> None:
    """It makes one of a gradient that something else holds."""

    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        places: list[tuple[int, int]] = []

        def see(gradients: tuple[Tensor, ...]) -> None:
            places.append((gradients[0].data_ptr(), 0))

        def in_hook(weight: Tensor) -> None:
            assert weight.grad is not None
            places[-1] = places[-1][0], weight.grad.data_ptr()
            weight.grad = None

        model.weight.register_post_accumulate_grad_hook(in_hook)
        for _step in range(3):
            loss = model(torch.ones(4, 32)).square().sum()
            handle = torch.autograd.graph.get_gradient_edge(model.weight).node.register_prehook(see)
            loss.backward()
            handle.remove()
        assert len(places) == 3
        assert all(before == after for before, after in places)
        return model

    record_own(program)


def test_a_hook_that_updates_a_tensor_of_no_module_has_state() -> None:
    def program(_: object) -> object:
        w = torch.randn(8, 2, requires_grad=True)
        momentum = torch.zeros(8, 2)

        def in_hook(weight: Tensor) -> None:
            with torch.no_grad():
                assert weight.grad is not None
                momentum.mul_(0.9).add_(weight.grad)
                weight.sub_(0.01 * momentum)
            weight.grad = None

        w.register_post_accumulate_grad_hook(in_hook)
        for _step in range(4):
            (torch.ones(4, 8) @ w).square().sum().backward()
        return w, momentum

    run = record_own(program)
    assert [(block.name, block.bytes) for block in run.of("weight")] == [("w", 64)]
    assert states(run) == [("w", 64)]


def test_a_hook_that_raises_ends_nothing() -> None:
    def program(_: object) -> object:
        model = nn.Linear(32, 4)
        update, kept = adam(model)
        calls: list[int] = []

        def in_hook(weight: Tensor) -> None:
            calls.append(0)
            gradient, weight.grad = weight.grad, None
            assert gradient is not None
            if len(calls) == 3:
                raise ValueError("a third call")
            with torch.no_grad():
                update(weight, gradient)

        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(in_hook)
        for _step in range(4):
            with suppress(ValueError):
                model(torch.ones(4, 32)).square().sum().backward()
        return model, kept

    assert states(record_own(program)) == sorted(2 * STATE)


class Loop(nn.Module):
    """A module with the loop over its steps in its forward."""

    def __init__(self, update: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.net = nn.Linear(32, 4, bias=False)
        self.update = update

    def forward(self, data: Tensor) -> None:
        for number in range(4):
            self.net(data[4 * number : 4 * number + 4]).square().sum().backward()
            assert self.net.weight.grad is not None
            with torch.no_grad():
                self.update(self.net.weight, self.net.weight.grad)
                self.net(data)
            self.net.weight.grad = None


def test_a_training_in_the_forward_of_a_module_has_phases_and_state() -> None:
    def program(_: object) -> object:
        momentum, data = torch.zeros(4, 32), torch.ones(16, 32)

        def update(weight: Tensor, gradient: Tensor) -> None:
            weight.sub_(0.01 * momentum.mul_(0.9).add_(gradient))

        model = Loop(update)
        model(data)
        model(data)
        return momentum, model

    run = record_own(program)
    assert [(block.name, block.bytes) for block in run.of("optimizer_state")] == [("net.weight", 512)]
    phases = [phase for _, phase in run.phases]
    assert phases.count("forward") == phases.count("backward") == 8
    assert phases.count("evaluation") == 8


def test_the_batch_of_a_training_in_the_forward_of_a_module_is_that_of_the_module_inside() -> None:
    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loss = nn.Linear(32, 4), nn.MSELoss()

        def forward(self, data: Tensor) -> None:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            for number in range(4):
                optimizer.zero_grad()
                self.loss(self.net(data[4 * number : 4 * number + 4]), torch.ones(4, 4)).backward()
                optimizer.step()

    found = record_own(lambda _: Training()(torch.ones(16, 32))).manifest.inputs
    assert found is not None
    assert found.shape == (4, 32)
