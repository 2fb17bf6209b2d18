"""Small compiled trainings: optimizers, schedules, scalers, averages, hooks, stances, marks and limits.

:data:`PROGRAMS` has a function for each, which returns what it computed. All of them make their inputs with
:func:`batch`, so that :data:`begins` is called at the beginning of every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import compiled_pairs as pairs
import torch
from compiled_pairs import BATCH, STEPS, WIDTH, Layer, Net, compiled
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as schedules
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

PROGRAMS: dict[str, Callable[[], list[Any]]] = {}
begins: list[Callable[[], None]] = []
"""Called at the beginning of every step."""


def program(name: str) -> Callable[[Callable[[], list[Any]]], Callable[[], list[Any]]]:
    """Add a function to :data:`PROGRAMS`."""

    def add(function: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
        PROGRAMS[name] = function
        return function

    return add


@torch.compiler.disable
def batch(rows: int = BATCH) -> Tensor:
    """Return an input; a step begins."""
    for one in begins:
        one()
    return torch.randn(rows, WIDTH)


def train(net: nn.Module, call: Callable[[Tensor], Tensor], rows: Callable[[int], int] = lambda _: BATCH) -> list[Any]:
    """Return the losses of an eager loop around compiled code."""
    optimizer, losses = optim.SGD(net.parameters(), 0.05), []
    for number in range(STEPS):
        loss = call(batch(rows(number))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def whole(net: nn.Module, **how: Any) -> list[Any]:
    return train(net, compiled(net, **how))


def outcome_of(function: Callable[[], list[Any]]) -> list[Any]:
    """Return what a program computes, or the error that it is meant to raise: its class and first line."""
    try:
        return function()
    except Exception as error:
        return [type(error).__name__, str(error).partition("\n")[0]]


# -- a compiled function that updates the weights --------------------------------------------------------------------


def updates(
    make: Callable[[Any], Any],
    schedule: Callable[[Any], Any] | None = None,
    *,
    inside: bool = False,
    clips: bool = False,
    accumulates: int = 1,
    closure: bool = False,
    **how: Any,
) -> list[Any]:
    net, losses = Net(), []
    optimizer = make(net.parameters())
    scheduler = None if schedule is None else schedule(optimizer)

    @partial(compiled, **how)
    def update() -> None:
        if clips:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step(lambda: None) if closure else optimizer.step()
        if scheduler is not None and inside:
            scheduler.step()

    for number in range(STEPS):
        loss = net(batch()).square().mean() / accumulates
        loss.backward()
        if number % accumulates == accumulates - 1:
            update()
            optimizer.zero_grad()
            if scheduler is not None and not inside:
                scheduler.step()
        losses.append(loss.item())
    return losses


def adam(parameters: Any) -> optim.Optimizer:
    return optim.Adam(parameters, torch.tensor(1e-3))


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, 0.05, momentum=0.9)


class Plain(optim.Optimizer):
    """An optimizer of the program's own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update all weights."""
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(weight.grad, alpha=-0.05)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": sgd,
    "Adam, rate in a tensor": adam,
    "Adam, one by one": lambda weights: optim.Adam(weights, torch.tensor(1e-3), foreach=False),
    "AdamW, fused": lambda weights: optim.AdamW(weights, 1e-3, fused=True),
    "of its own": Plain,
} | {
    name: getattr(optim, name)
    for name in (
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adamax",
        "AdamW",
        "ASGD",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
    )
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda one: schedules.StepLR(one, 2),
    "OneCycleLR": lambda one: schedules.OneCycleLR(one, 0.1, total_steps=100),
    "CosineAnnealingLR": lambda one: schedules.CosineAnnealingLR(one, 10),
    "CosineAnnealingWarmRestarts": lambda one: schedules.CosineAnnealingWarmRestarts(one, 3),
    "LambdaLR": lambda one: schedules.LambdaLR(one, lambda epoch: 0.9**epoch),
    "SequentialLR": lambda one: schedules.SequentialLR(
        one, [schedules.LinearLR(one), schedules.ExponentialLR(one, 0.9)], [3]
    ),
    "ChainedScheduler": lambda one: schedules.ChainedScheduler(
        [schedules.ConstantLR(one), schedules.ExponentialLR(one, 0.9)]
    ),
    "CyclicLR": lambda one: schedules.CyclicLR(one, 1e-3, 0.1, cycle_momentum=False),
    "PolynomialLR": schedules.PolynomialLR,
}
for _name, _make in OPTIMIZERS.items():
    PROGRAMS[f"update: {_name}"] = partial(updates, _make)
for _name, _schedule in SCHEDULES.items():
    PROGRAMS[f"update, {_name} outside"] = partial(updates, adam, _schedule)
    PROGRAMS[f"update, {_name} inside"] = partial(updates, adam, _schedule, inside=True)
PROGRAMS |= {
    "update, rate is a float, schedule outside": partial(updates, sgd, SCHEDULES["StepLR"]),
    "update, rate is a float, schedule inside": partial(updates, sgd, SCHEDULES["StepLR"], inside=True),
    "update, clipped": partial(updates, adam, clips=True),
    "update, accumulated": partial(updates, adam, accumulates=2),
    "update with a closure": partial(updates, adam, closure=True),
    "update, fullgraph fails": lambda: outcome_of(partial(updates, adam, fullgraph=True)),
}


def two_optimizers(*, together: bool) -> list[Any]:
    """Train two layers with an optimizer and a schedule each, in one compiled function or in two."""
    first, second, losses = Layer(), Layer(), []
    one, two = optim.SGD(first.parameters(), 0.05, momentum=0.9), optim.AdamW(second.parameters(), 0.01)
    both = [(one, schedules.StepLR(one, 2)), (two, schedules.CosineAnnealingLR(two, 10))]

    def update(optimizer: Any, scheduler: Any) -> None:
        optimizer.step()
        scheduler.step()

    @compiled
    def step(x: Tensor) -> Tensor:
        loss = second(first(x)).square().mean()
        loss.backward()
        for optimizer, _ in both:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    apart = [compiled(partial(update, *pair)) for pair in both]
    for _ in range(STEPS):
        if together:
            losses.append(step(batch()).item())
            for _, scheduler in both:
                scheduler.step()
            continue
        loss = second(first(batch())).square().mean()
        loss.backward()
        for call, (optimizer, _) in zip(apart, both, strict=True):
            call()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


PROGRAMS |= {
    "two optimizers in a step": partial(two_optimizers, together=True),
    "two compiled updates": partial(two_optimizers, together=False),
}


@program("groups with rates of their own")
def groups() -> list[Any]:
    def make(_: Any) -> optim.Optimizer:
        rates = torch.tensor(1e-3), torch.tensor(1e-2)
        return optim.AdamW(
            [{"params": layer.parameters(), "lr": rate} for layer, rate in zip(net.blocks, rates, strict=True)]
        )

    net, losses = Net(), []
    optimizer = make(net)
    scheduler = schedules.OneCycleLR(optimizer, [0.1, 0.1], total_steps=50)

    @compiled
    def update() -> None:
        optimizer.step()
        scheduler.step()

    for _ in range(STEPS):
        loss = net(batch()).square().mean()
        loss.backward()
        update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@program("hooks of the program's own around updates")
def step_hooks() -> list[Any]:
    seen: list[int] = []

    def make(parameters: Any) -> optim.Optimizer:
        optimizer = adam(parameters)
        optimizer.register_step_pre_hook(lambda *_: seen.append(1))
        optimizer.register_step_post_hook(lambda *_: seen.append(2))
        register_optimizer_step_post_hook(lambda *_: seen.append(3))
        return optimizer

    return updates(make) + seen


@program("step is replaced by its compiled self")
def replaced_step() -> list[Any]:
    def make(parameters: Any) -> optim.Optimizer:
        optimizer = adam(parameters)
        optimizer.step = compiled(optimizer.step)
        return optimizer

    return updates(make)


@program("LBFGS around a compiled model")
def lbfgs() -> list[Any]:
    net = Net()
    call, optimizer = compiled(net), optim.LBFGS(net.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = call(torch.ones(BATCH, WIDTH)).square().mean()
        loss.backward()
        return loss

    losses = []
    for _ in range(STEPS):
        batch()
        losses.append(float(optimizer.step(closure)))
    return losses


# -- a compiled training step ----------------------------------------------------------------------------------------


def whole_step(prepare: Callable[[nn.Module, Any], dict[str, Any]]) -> list[Any]:
    net, losses = Net(), []
    optimizer = optim.AdamW(net.parameters(), torch.tensor(1e-3))
    how = prepare(net, optimizer)

    @compiled
    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=how.get("autocast", False)):
            loss = net(x).float().square().mean()
        loss.backward()
        if how.get("clips"):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=how.get("set_to_none", True))
        if "inside" in how:
            how["inside"]()
        return loss.detach()

    for _ in range(STEPS):
        losses.append(step(batch()).item())
        if "outside" in how:
            how["outside"]()
    return losses


def averaged(where: str, net: nn.Module, _: Any) -> dict[str, Any]:
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    return {where: lambda: average.update_parameters(net)}


PROGRAMS |= {
    "step, autocast, clipped": lambda: whole_step(lambda *_: {"autocast": True, "clips": True}),
    "step, gradients are zeroed": lambda: whole_step(lambda *_: {"set_to_none": False}),
    "step, schedule inside": lambda: whole_step(lambda _, one: {"inside": SCHEDULES["CosineAnnealingLR"](one).step}),
    "step, schedule outside": lambda: whole_step(lambda _, one: {"outside": SCHEDULES["CosineAnnealingLR"](one).step}),
    "step, average inside": lambda: whole_step(partial(averaged, "inside")),
    "step, average outside": lambda: whole_step(partial(averaged, "outside")),
}


@program("an average is evaluated")
def evaluated_average() -> list[Any]:
    net = Net()
    average = AveragedModel(net)
    call, losses = compiled(average), whole(net)
    with torch.no_grad():
        for _ in range(4):
            average.update_parameters(net)
            losses.append(call(batch()).sum().item())
    return losses


@program("GradScaler around a compiled model")
def scaled() -> list[Any]:
    net, losses = Net(), []
    call, optimizer, scaler = compiled(net), sgd(net.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(batch()).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@program("GradScaler in a compiled step")
def scaled_inside() -> list[Any]:
    net = Net()
    optimizer, scaler = sgd(net.parameters()), torch.amp.GradScaler("cpu")

    @compiled
    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return [step(batch()).item() for _ in range(STEPS)]


@program("GradScaler around a compiled update")
def scaled_update() -> list[Any]:
    net, losses = Net(), []
    optimizer, scaler = adam(net.parameters()), torch.amp.GradScaler("cpu")
    optimizer.step = compiled(optimizer.step)
    for _ in range(STEPS):
        loss = net(batch()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def updates_in_backward(*, autograd_compiled: bool) -> list[Any]:
    net = Net()
    of_weight = {weight: optim.SGD([weight], torch.tensor(0.05)) for weight in net.parameters()}

    def update(weight: Tensor) -> None:
        of_weight[weight].step()
        of_weight[weight].zero_grad()

    for weight in net.parameters():
        weight.register_post_accumulate_grad_hook(update)

    def step(x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        return loss

    call = compiled(step if autograd_compiled else net)
    if autograd_compiled:
        with torch._dynamo.config.patch(compiled_autograd=True):
            return [call(batch()).item() for _ in range(STEPS)]
    losses = []
    for _ in range(STEPS):
        loss = call(batch()).square().mean()
        loss.backward()
        losses.append(loss.item())
    return losses


PROGRAMS |= {
    "updates in backward": partial(updates_in_backward, autograd_compiled=False),
    "updates in compiled autograd": partial(updates_in_backward, autograd_compiled=True),
}

# -- compiled models -------------------------------------------------------------------------------------------------


@program("modules that compute nothing")
def nothing() -> list[Any]:
    nets = [*(nn.Identity() for _ in range(4)), nn.Dropout().eval(), nn.Sequential(nn.Identity())]
    for net in nets:
        net.register_forward_hook(lambda *_: None)
    call = compiled(lambda net, x: net(x))
    return [call(nets[number % len(nets)], batch()).sum().item() for number in range(STEPS)]


class Parts(nn.Module):
    """Parts between graph breaks that compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing, self.layer, self.calls = nn.Identity(), Layer(), 0

    def forward(self, x: Tensor) -> Tensor:
        """Break the graph twice."""
        self.calls += 1
        for _ in range(2):
            x = self.nothing(x)
            torch._dynamo.graph_break()
        return self.layer(x)


@program("parts that compute nothing")
def parts() -> list[Any]:
    nets = nn.Sequential(Parts(), Parts())
    for net in nets:
        net.compile(backend=pairs._backend())
    return train(nets, nets)


@program("hooks of modules")
def module_hooks() -> list[Any]:
    net, sums = Net(), []
    for block in net.blocks:
        block.register_forward_hook(lambda _module, _args, out: sums.append(out.sum()))
        block.register_full_backward_pre_hook(lambda *_: None)
    nn.modules.module.register_module_forward_hook(lambda *_: None)
    return whole(net)


@program("fullgraph, dynamic")
def full() -> list[Any]:
    return whole(Net(), fullgraph=True, dynamic=True)


@program("fullgraph fails")
def fullgraph_fails() -> list[Any]:
    return outcome_of(lambda: whole(Net(pairs.breaking), fullgraph=True))


def disabled(**how: bool) -> list[Any]:
    @torch.compiler.disable(**how)
    def call(block: nn.Module, x: Tensor) -> Tensor:
        return block(x)

    return whole(Net(call))


def marked(mark: Callable[[Tensor, int], None]) -> list[Any]:
    net = Net()
    call = compiled(net)

    def forward(x: Tensor) -> Tensor:
        mark(x, 0)
        return call(x)

    return train(net, forward, lambda number: BATCH + number)


def in_stance(stance: str, **more: bool) -> list[Any]:
    net, steps = Net(), iter(range(STEPS))
    call = compiled(net, dynamic=False)

    def forward(x: Tensor) -> Tensor:
        later = next(steps) > 2
        with torch.compiler.set_stance(stance if later else "default", **(more if later else {})):
            return call(x)

    return train(net, forward, lambda number: BATCH if "fail" in stance or more else BATCH + number // 4)


PROGRAMS |= {
    "disabled inside": disabled,
    "disabled inside, not its callees": partial(disabled, recursive=False),
    "mark_dynamic": lambda: marked(torch._dynamo.mark_dynamic),
    "maybe_mark_dynamic": lambda: marked(torch._dynamo.maybe_mark_dynamic),
    "mark_unbacked": lambda: marked(torch._dynamo.decorators.mark_unbacked),
    "guards are skipped": partial(in_stance, "default", skip_guard_eval_unsafe=True),
} | {
    f"set_stance: {stance}": partial(in_stance, stance)
    for stance in ("eager_on_recompile", "force_eager", "fail_on_recompile")
}


def on_break(fails: bool, block: nn.Module, x: Tensor) -> Tensor:
    with torch._dynamo.error_on_graph_break(fails):
        torch._dynamo.graph_break()
        return block(x)


PROGRAMS |= {
    "error_on_graph_break(False)": lambda: whole(Net(partial(on_break, False))),
    "error_on_graph_break(True)": lambda: outcome_of(lambda: whole(Net(partial(on_break, True)))),
}


class Scaled(nn.Module):
    """Is compiled again in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.factor = Net(), 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by a number that changes."""
        return self.net(x) * self.factor


def limited(**limits: Any) -> list[Any]:
    net = Scaled()
    call = compiled(net, dynamic=False)

    def forward(x: Tensor) -> Tensor:
        net.factor += 1
        return call(x)

    with torch._dynamo.config.patch(**limits):
        return outcome_of(lambda: train(net, forward))


@program("limit of all blocks")
def limit_of_all() -> list[Any]:
    blocks = nn.Sequential(*(Layer() for _ in range(6)))
    for block in blocks:
        block.compile(backend=pairs._backend())
    with torch._dynamo.config.patch(accumulated_recompile_limit=3):
        return train(blocks, blocks)


PROGRAMS |= {f"recompile_limit={limit}": partial(limited, recompile_limit=limit) for limit in (1, 2, 4)}
PROGRAMS["fail_on_recompile_limit_hit"] = partial(limited, recompile_limit=2, fail_on_recompile_limit_hit=True)


@program("modules of torch are not inlined")
def not_inlined() -> list[Any]:
    with torch._dynamo.config.patch(inline_inbuilt_nn_modules=False):
        return whole(Net())


@program("compiled in a compiled model")
def nested() -> list[Any]:
    net = Net()
    net.blocks[0].compile(backend=pairs._backend())
    return whole(net)


@program("the loss alone")
def loss_alone() -> list[Any]:
    net, losses = Net(), []
    call, optimizer = compiled(nn.CrossEntropyLoss()), sgd(net.parameters())
    for _ in range(STEPS):
        loss = call(net(batch()), torch.zeros(BATCH, dtype=torch.long))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@program("evaluated in turns")
def evaluated() -> list[Any]:
    net = nn.Sequential(Layer(), nn.Dropout(0.1), nn.BatchNorm1d(WIDTH))
    call, sums = compiled(net), []

    def forward(x: Tensor) -> Tensor:
        net.train()
        found = call(x)
        net.eval()
        with torch.no_grad():
            sums.append(call(x).sum().item())
        return found

    return train(net, forward) + sums


@program("reset in the middle")
def reset() -> list[Any]:
    net, steps = Net(), iter(range(STEPS))
    call = compiled(net)

    def forward(x: Tensor) -> Tensor:
        if next(steps) == 3:
            torch._dynamo.reset()
        return call(x)

    return train(net, forward)


@program("evaluated in a thread")
def threads() -> list[Any]:
    net, sums = Net(), []
    call = compiled(net)
    losses = train(net, call)

    def evaluate() -> None:
        with torch.no_grad():
            sums.append(call(torch.ones(BATCH, WIDTH)).sum().item())

    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    return losses + sums


def exported(**how: bool) -> list[Any]:
    net = Net()
    found = torch.export.export(net, (batch(),), **how).module()
    return [found(batch()).sum().item(), *whole(net)]


PROGRAMS |= {"exported": exported, "exported, strict": partial(exported, strict=True)}


@program("lists of inputs")
def lists() -> list[Any]:
    net = Net()

    @compiled
    def call(inputs: list[Tensor]) -> Tensor:
        return sum(net(x) for x in inputs)

    return [call([batch() for _ in range(1 + number % 3)]).sum().item() for number in range(STEPS)]
