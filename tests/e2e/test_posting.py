"""What posting says of trainings whose answer is known, recorded on CPU tensors and read back from the tables."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from present import present
from recorded import Recorded, record_own, record_run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.torch

FLOAT = 4
MLP_BYTES = {"0.weight": 512, "0.bias": 64, "2.weight": 256, "2.bias": 16}


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2, *, set_to_none: bool = True) -> None:
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def sizes(run: Recorded, category: str) -> dict[str, int]:
    """Return name -> bytes of what a category holds at the end; each name once."""
    assert max(run.kept_names(category).values(), default=1) == 1
    return {block.name: block.bytes for block in run.of(category) if block.kept}


def made_other(run: Recorded) -> list[int]:
    """Return the bytes of each block of "other" made while recording; torch's compiler keeps older ones of its own."""
    return [block.bytes for block in run.of("other") if block.alloc_index >= 0]


def assert_sound(run: Recorded) -> None:
    """Every check of the replay against the recorder's own counters held, and nothing was noted."""
    assert run.manifest.checks
    assert [check for check in run.manifest.checks if not check.ok] == []
    assert run.manifest.status == "closed"
    assert run.manifest.notes == ()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_every_category_of_a_plain_training(set_to_none: bool) -> None:
    def program(_: object) -> object:
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, 3, set_to_none=set_to_none)
        return model, optimizer

    run = record_own(program)
    assert_sound(run)
    weights = {"0.weight": 512, "0.bias": 64, "1.weight": 64, "1.bias": 64, "3.weight": 256, "3.bias": 16}
    assert sizes(run, "weight") == weights
    assert sizes(run, "gradient") == weights
    assert sizes(run, "buffer") == {"1.running_mean": 64, "1.running_var": 64, "1.num_batches_tracked": 8}
    assert run.kept_names("optimizer_state") == dict.fromkeys(weights, 3)
    assert run.bytes_of("optimizer_state") == 2 * sum(weights.values()) + len(weights) * FLOAT
    assert {(b.bytes, b.module) for b in run.of("input")} == {(4 * 8 * FLOAT, "Sequential")}
    assert len(run.of("input")) == 3
    for step in (1, 2, 3):
        held = {b.module: b.bytes for b in run.of("activation", step=step) if b.module and b.bytes > 64}
        assert held == {"0": 256, "2": 256}  # what batch norm and the ReLU keep; the ReLU works on batch norm's output
        assert all(b.phase == "forward" for b in run.of("activation", step=step))
    made = {b.step for b in run.of("gradient")}
    assert made == ({1, 2, 3} if set_to_none else {1})
    assert {b.phase for b in run.of("temporary") if b.phase == "optimizer"} == {"optimizer"}
    assert made_other(run) == []


def test_what_was_made_before_the_recording_has_its_names() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    run = record_run(lambda _: train(model, optimizer, 1))
    assert_sound(run)
    assert sizes(run, "weight") == sizes(run, "optimizer_state") == MLP_BYTES
    assert {b.alloc_index for b in (*run.of("weight"), *run.of("optimizer_state"))} == {-1}
    before = [b for b in run.of("gradient") if b.alloc_index == -1]
    assert sum(b.bytes for b in before) == sum(MLP_BYTES.values())


def test_a_late_window_finds_what_was_made_before_it() -> None:
    def program(_: object) -> object:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, 5)
        return model, optimizer

    run = record_run(program, steps=(2, 3))
    assert_sound(run)
    assert sizes(run, "weight") == MLP_BYTES
    assert run.kept_names("optimizer_state") == dict.fromkeys(MLP_BYTES, 3)
    assert run.paths == ["Sequential", "0", "1", "2"]
    assert {step for step, _ in run.phases} == {2, 3}
    assert "setup" not in {phase for _, phase in run.phases}
    assert [recorded for _, _, recorded in run.steps] == [False, True, True, False, False]


def test_a_window_that_is_never_reached_keeps_the_steps() -> None:
    def program(_: object) -> None:
        model = mlp()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)

    run = record_own(program, steps=(9, 10))
    assert run.steps == [(1, "optimizer", False), (2, "optimizer", False)]
    assert run.blocks == ()
    assert run.manifest.status == "closed"
    assert present(run.manifest.window).to_json() == {"asked": [9, 10], "first_step": None, "last_step": None}


def test_gradients_are_accumulated_into_the_same_blocks() -> None:
    def program(_: object) -> object:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        return model

    run = record_own(program)
    assert_sound(run)
    assert sizes(run, "gradient") == MLP_BYTES
    assert {b.step for b in run.of("gradient")} == {1}
    assert run.steps == [(1, "optimizer", True)]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.arange(12.0))
        self.register_buffer("row", self.get_buffer("table")[2:4])
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(self.embedding(x)))


def test_tied_weights_views_frozen_parameters_and_an_average_never_called() -> None:
    def program(_: object) -> object:
        model = Tied()
        average = copy.deepcopy(model)
        optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
        F.cross_entropy(model(torch.arange(10)), torch.arange(10)).backward()
        optimizer.step()
        return model, average, optimizer

    run = record_own(program)
    assert_sound(run)
    own = {"embedding.weight": 320, "frozen.weight": 256, "frozen.bias": 32}
    assert sizes(run, "weight") == own | {f"average.{name}": size for name, size in own.items()}
    assert sizes(run, "buffer") == {"table": 48, "average.table": 48}
    assert sizes(run, "gradient") == {"embedding.weight": 320}
    assert set(run.kept_names("optimizer_state")) == {"embedding.weight"}
    kept = {b.module for b in run.of("weight") if b.kept}
    assert kept == {"embedding", "frozen", "average.embedding", "average.frozen"}


def test_optimizers_in_backward() -> None:
    def program(_: object) -> object:
        model = mlp()
        optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}

        def update(parameter: nn.Parameter) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        hooks = [parameter.register_post_accumulate_grad_hook(update) for parameter in model.parameters()]
        for _ in range(2):
            model(torch.randn(4, 8)).sum().backward()
        for hook in hooks:
            hook.remove()
        return model, optimizers

    run = record_own(program)
    assert_sound(run)
    assert sizes(run, "weight") == MLP_BYTES
    assert sizes(run, "gradient") == {}
    assert sum(b.bytes for b in run.of("gradient")) == 2 * sum(MLP_BYTES.values())
    assert run.kept_names("optimizer_state") == dict.fromkeys(MLP_BYTES, 3)
    assert [number for number, _, _ in run.steps] == [1, 2]


def test_lbfgs_calls_the_model_inside_its_step() -> None:
    def program(_: object) -> object:
        model = mlp()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        x = torch.randn(4, 8)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return model, optimizer

    run = record_own(program)
    assert_sound(run)
    assert sizes(run, "weight") == sizes(run, "gradient") == MLP_BYTES
    assert run.bytes_of("optimizer_state") > 0
    assert {phase for step, phase in run.phases if step == 1} == {"forward", "backward", "optimizer"}
    assert run.steps == [(1, "optimizer", True), (2, "optimizer", True)]


def test_a_gradient_penalty_returns_to_forward() -> None:
    def program(_: object) -> object:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        optimizer.step()
        return model

    run = record_own(program)
    assert_sound(run)
    assert [phase for step, phase in run.phases if step == 1] == ["forward", "backward"] * 2 + ["between"]
    assert set(sizes(run, "gradient")) <= set(MLP_BYTES)
    assert sizes(run, "gradient")["0.weight"] == 512


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.body, self.reentrant = nn.Linear(8, 8), mlp(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_activations_stay_on_their_module(reentrant: bool) -> None:
    def program(_: object) -> object:
        model = Checkpointed(reentrant)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return model

    run = record_own(program)
    assert_sound(run)
    again = {b.module for b in run.of("activation", phase="backward")}
    assert {"body.0", "body.1"} <= again <= {"body.0", "body.1", "body.2"}
    first_time = {b.category for b in run.blocks if b.phase == "forward" and b.module in ("body.0", "body.1")}
    assert first_time == {"temporary"}
    assert [b.bytes for b in run.of("activation", module="first", step=1)] == [4 * 8 * FLOAT]


def test_two_networks_are_told_apart() -> None:
    def program(_: object) -> object:
        generator, critic = mlp(), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        of_generator, of_critic = (torch.optim.Adam(net.parameters()) for net in (generator, critic))
        for _ in range(2):
            noise = torch.randn(4, 8)
            of_critic.zero_grad()
            F.softplus(critic(generator(noise).detach())).mean().backward()
            of_critic.step()
            of_generator.zero_grad()
            F.softplus(-critic(generator(noise))).mean().backward()
            of_generator.step()
        return generator, critic, of_generator, of_critic

    run = record_own(program)
    assert_sound(run)
    names = [f"{variable}.{name}" for variable in ("generator", "critic") for name in MLP_BYTES]
    assert sorted(sizes(run, "weight")) == sorted(names)
    assert run.kept_names("optimizer_state") == dict.fromkeys(names, 3)
    assert all(b.name.startswith(f"{b.module}.") for b in run.of("gradient"))
    assert run.steps == [(1, "optimizer", True), (2, "optimizer", True)]


def test_a_loss_made_anew_in_each_forward_is_one_module() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return nn.MSELoss()(self.net(x), torch.zeros(4, 4))

    def program(_: object) -> object:
        inside, outside = Inside(), mlp()
        optimizer = torch.optim.SGD([*inside.parameters(), *outside.parameters()], lr=0.1)
        for _ in range(3):
            loss = inside(torch.randn(4, 8)) + nn.L1Loss()(outside(torch.randn(4, 8)), torch.zeros(4, 4))
            loss.backward()
            optimizer.step()
        return inside, outside

    run = record_own(program)
    assert_sound(run)
    assert [path for path in run.paths if "Loss" in path] == ["Inside.MSELoss", "L1Loss"]


def test_a_model_without_modules() -> None:
    def program(_: object) -> object:
        weight = torch.randn(8, 4, requires_grad=True)
        optimizer = torch.optim.Adam([weight])
        for _ in range(3):
            optimizer.zero_grad()
            (torch.randn(4, 8) @ weight).relu().square().sum().backward()
            optimizer.step()
        return weight, optimizer

    run = record_own(program)
    assert_sound(run)
    assert sizes(run, "weight") == {"weight": 128}
    assert [b.step for b in run.of("gradient")] == [1, 2, 3]
    assert run.kept_names("optimizer_state") == {"weight": 3}
    assert [b.bytes for b in run.of("activation", step=2)] == [128, 64]  # the data, held for the weight's gradient
    assert sum(made_other(run)) <= FLOAT


def test_a_module_made_where_another_was_is_not_taken_for_it() -> None:
    def program(_: object) -> None:
        for width in (2, 3, 4):
            nn.Sequential(nn.Linear(8, width))(torch.randn(2, 8)).sum().backward()

    run = record_own(program)
    assert_sound(run)
    assert [(b.module, b.bytes) for b in run.of("weight") if b.name.endswith("weight")] == [
        ("Sequential.0", 64),
        ("Sequential#2.0", 96),
        ("Sequential#3.0", 128),
    ]
    assert run.bytes_of("weight") == run.bytes_of("gradient") == 0


def test_evaluation_between_steps_is_a_phase_of_its_own() -> None:
    def program(_: object) -> object:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            train(model, optimizer, 1)
            with torch.no_grad():
                model(torch.randn(64, 8))
        return model

    run = record_own(program)
    assert_sound(run)
    large = [b for b in run.blocks if b.bytes == 64 * 16 * FLOAT]
    assert len(large) == 4
    assert {(b.category, b.phase) for b in large} == {("temporary", "evaluation")}
    assert [kind for _, kind, _ in run.steps] == ["optimizer", "optimizer"]


@pytest.mark.parametrize("whole", [True, False], ids=["torch.compile(model)", "model.compile()"])
def test_a_compiled_model_keeps_its_names_and_the_run_says_so(whole: bool) -> None:
    torch._dynamo.reset()

    def program(_: object) -> object:
        model = Doubling()
        called: Any = torch.compile(model, backend="eager", fullgraph=True) if whole else model
        if not whole:
            model.compile(backend="eager", fullgraph=True)
        train(called, torch.optim.SGD(model.parameters(), lr=0.1))
        return model

    run = record_own(program)
    assert run.manifest.notes == (
        "1 module runs compiled, and memory allocated in a compiled region is attributed to its outermost module.",
    )
    assert all(check.ok for check in run.manifest.checks)
    assert sizes(run, "weight") == sizes(run, "gradient") == {f"net.{name}": size for name, size in MLP_BYTES.items()}
    assert {b.module for b in run.of("activation") if b.bytes == 256} == {"Doubling"}


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * 2


def test_wrappers_leave_no_trace_in_names_and_a_child_called_module_keeps_its_own() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    def program(_: object) -> object:
        wrapped = nn.DataParallel(Holder())
        train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))
        return wrapped

    run = record_own(program)
    assert_sound(run)
    assert sizes(run, "weight") == {"module.weight": 128, "module.bias": 16}
    assert run.paths == ["DataParallel", "DataParallel", "module"]
