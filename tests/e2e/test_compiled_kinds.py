"""Kinds of compiled programs: memory is on the modules that compute it, and the program computes what it does alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
import torch
from recorded import Recorded, record_run
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # Dynamo reads attributes that warn
    pytest.mark.usefixtures("compiler_caches"),
]

WIDTH = 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.fc(x))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.one, x, use_reentrant=False)
        return checkpoint(self.two, x, use_reentrant=False)  # type: ignore[no-any-return]


class Broken(nn.Module):
    """Two equal regions between graph breaks: the second takes its code from the cache that the first has filled."""

    def __init__(self) -> None:
        super().__init__()
        self.zero, self.one, self.two = Layer(), Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        x = self.zero(x)
        torch._dynamo.graph_break()
        x = self.one(x)
        torch._dynamo.graph_break()
        x = self.two(x)
        torch._dynamo.graph_break()
        return x


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))  # type: ignore[no-any-return]


class NestedLayer(Layer):
    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.fc(x))


class Nested(nn.Module):
    """Blocks that are compiled once and called as one body."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = NestedLayer(), NestedLayer()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)) + 1  # type: ignore[no-any-return]


class Branching(nn.Module):
    """A choice between blocks, in which nothing but matrix products has to be computed."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor, takes_two: Tensor) -> Tensor:
        return torch.cond(takes_two, lambda x: self.two(self.two(x)), lambda x: self.one(x), (x,))  # type: ignore[no-any-return]


def whole(net: nn.Module) -> None:
    net.compile()


def each(net: nn.Module) -> None:
    for child in net.children():
        child.compile()


def fails(_graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
    raise RuntimeError("planted")


def falls_back(net: nn.Module) -> None:
    net.compile(backend=fails)


KINDS: dict[str, tuple[type[nn.Module], Callable[[nn.Module], None]]] = {
    "checkpointed": (Checkpointed, whole),
    "equal regions": (Broken, whole),
    "regional": (Blocks, each),
    "nested": (Nested, whole),
    "dynamic": (Blocks, lambda net: net.compile(dynamic=True)),
    "aot_eager": (Blocks, lambda net: net.compile(backend="aot_eager")),
    "falls back": (Blocks, falls_back),
}


def train(kind: str) -> tuple[list[float], dict[str, int], object]:
    """Return the losses of three steps, the counters of the compiler, and what must be kept alive."""
    make, compile_it = KINDS[kind]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(suppress_errors=kind == "falls back"):
        losses, kept = take_steps(make(), compile_it)
    return losses, dict(torch._dynamo.utils.counters["stats"]), kept


def take_steps(net: nn.Module, compile_it: Callable[[nn.Module], None]) -> tuple[list[float], object]:
    """Return the losses of three steps, and what must be kept alive."""
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    compile_it(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for _step in range(3):
        loss = net(torch.randn(64, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, (net, optimizer)


def bytes_by_module(run: Recorded) -> Counter[str]:
    """Return the bytes that forward and backward allocate in modules."""
    found: Counter[str] = Counter()
    for block in run.blocks:
        if block.category in ("activation", "temporary", "activation_gradient") and block.module:
            found[block.module] += block.bytes
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_program_does_what_it_does_alone(kind: str) -> None:
    outcomes = []

    def program(_: object) -> object:
        losses, counters, kept = train(kind)
        outcomes.append((losses, counters))
        return kept

    run = record_run(program, steps=(2, 3))
    losses, counters, _ = train(kind)
    assert outcomes == [(losses, counters)]
    assert run.manifest.compiled_unread is None
    found = bytes_by_module(run)
    if kind == "aot_eager":
        assert set(found) <= {run.paths[0]}, found  # this backend keeps no modules, and its graphs are none
        return
    outermost = run.paths[0]
    inner = sum(size for path, size in found.items() if path not in ("", outermost))
    assert inner >= {"equal regions": 0.75, "nested": 0.8}.get(kind, 0.97) * found.total(), found


def test_a_model_that_only_a_compiled_function_calls_has_its_memory_on_its_modules() -> None:
    def program(_: object) -> object:
        torch._dynamo.reset()
        net = Blocks()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        @torch.compile
        def loss_of(x: Tensor) -> Tensor:
            return net(x).square().mean()  # type: ignore[no-any-return]

        for _step in range(3):
            loss_of(torch.randn(64, WIDTH)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, optimizer

    run = record_run(program, steps=(1, 2))
    found: Counter[str] = Counter()
    for block in run.blocks:
        if block.category in ("activation", "temporary", "activation_gradient"):
            found[block.module] += block.bytes
    assert {path.partition(".")[0] for path in found} == {"", "one", "two"}
    assert found[""] <= 2 * (64 * WIDTH * 4 + 8), found  # the loss: a gradient and two scalars in each step


def test_gradients_of_a_compiled_function_are_no_inputs() -> None:
    def program(_: object) -> object:
        torch._dynamo.reset()
        net, results = nn.Linear(WIDTH, WIDTH, bias=False), []
        weights = {name: weight.detach() for name, weight in net.named_parameters()}

        def loss_of(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(net, weights, (x[None],)).square().mean()  # type: ignore[no-any-return]

        gradients = torch.compile(vmap(grad(loss_of), in_dims=(None, 0)))
        for _step in range(4):
            results = [gradients(weights, torch.randn(8, WIDTH))["weight"]]
        return net, results

    run = record_run(program, steps=(1, 3))
    assert [step for step in run.steps if step[2]] == [(number, "call", True) for number in (1, 2, 3)]
    found = [block for block in run.blocks if block.bytes == 8 * WIDTH * WIDTH * 4]
    assert len(found) >= 3
    assert {block.category for block in found} == {"activation"}
    assert {block.phase for block in found} == {"forward"}


def test_code_of_another_region_is_never_on_its_modules() -> None:
    def program(_: object) -> object:
        return train("equal regions")[2]

    run = record_run(program, steps=(2, 3))
    layers: Counter[tuple[str, str]] = Counter()
    for block in run.blocks:
        if block.category in ("activation", "activation_gradient") and block.step:
            layers[block.module.partition(".")[0], block.category] += block.bytes
    assert layers["one", "activation"] == layers["two", "activation"] > 0
    # a backward from the cache can be that of each region: then it is on the module around them
    own_bytes = 2 * 64 * WIDTH * 4
    assert {layers[name, "activation_gradient"] for name in ("one", "two")} <= {0, own_bytes}
    assert layers["zero", "activation_gradient"] == 0
    in_backward = [one for one in run.blocks if one.phase == "backward" and one.bytes == 64 * WIDTH * 4]
    placed = sum(one.bytes for one in in_backward if one.module.partition(".")[0] in ("one", "two", "Broken"))
    assert placed == 2 * own_bytes


def test_memory_of_a_branch_is_on_its_modules() -> None:
    counted = []

    def program(_: object) -> object:
        torch._dynamo.reset()
        net = nn.Sequential()
        net.branch = Branching().requires_grad_(requires_grad=False)
        call = torch.compile(net.branch, fullgraph=True)
        for takes_two in (True, False, True):
            call(torch.ones(64, WIDTH), torch.tensor(takes_two))
        counted.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        return net

    run = record_run(program, step_on="module", steps=(1, 3))
    of_modules = [one for one in run.blocks if one.phase == "forward" and one.bytes == 64 * WIDTH * 4]
    assert Counter((one.module, one.step) for one in of_modules) == {("two", 1): 2, ("one", 2): 1, ("two", 3): 2}
    # the result of each call outlives it, and no backward follows
    assert Counter(one.category for one in of_modules) == {"activation": 3, "temporary": 2}


def test_a_compiled_loss_in_an_optimizers_closure_is_forward() -> None:
    def program(_: object) -> object:
        torch._dynamo.reset()
        net = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        call = torch.compile(lambda x: net(x))

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = call(torch.ones(64, WIDTH)).sum()
            loss.backward()
            return loss  # type: ignore[no-any-return]

        for _step in range(3):
            optimizer.step(closure)
        return net

    run = record_run(program, steps=(2, 3))
    made = [one for one in run.blocks if one.bytes == 64 * WIDTH * 4 and one.module]
    assert {(one.module, one.phase, one.category) for one in made if one.phase != "backward"} == {
        ("0", "forward", "activation"),
        ("1", "forward", "activation"),
    }
