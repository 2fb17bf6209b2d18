"""The module tracker against the oracle, on nets whose answers are known, and against what must not change."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
import torch._dynamo.testing
from oracle import Oracle
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpuledger.collect.adapter.uncompiled import keep_uncompiled


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 8), nn.Tanh()))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.gelu(self.block(x)) * 2)


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared(torch.sin(self.other(self.shared(x)))) + x


class TwoOutputs(nn.Module):
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return self.a(x).exp(), {"b": self.b(x) * 3}

    def __init__(self) -> None:
        super().__init__()
        self.split = self.Split()
        self.join = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.split(x)
        return self.join(torch.cat([a, b["b"]], dim=1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).relu().contiguous()
        k = self.k(x) * 2
        v = (self.v(x) + 1).sigmoid()
        return self.out(torch.softmax(q @ k.T, dim=-1) @ v)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = (
            nn.LayerNorm(8),
            Attention(),
            nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x) * 0.5


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.last = nn.Linear(8, 8), Residual(), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.body, self.first(x), use_reentrant=False))


NETS = [Nested, Reused, TwoOutputs, Attention, Residual, Checkpointed]


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.__name__)
def test_every_byte_made_in_backward_goes_to_the_module_that_made_the_node(net: type[nn.Module]) -> None:
    model = net()
    x = torch.randn(8, 8, requires_grad=True)
    with Oracle(model) as oracle:
        for _ in range(2):
            model(x).tanh().square().mean().backward()
    assert oracle.right_bytes > 0
    assert oracle.wrong_bytes == 0, dict(oracle.wrong)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = (x * self.weight).tanh()
        return x


class Parts(nn.Module):
    """Modules that the program calls itself. Their names are those of their classes, as each is called alone."""

    def __init__(self) -> None:
        super().__init__()
        self.Softplus, self.Linear = nn.Softplus(), nn.Linear(8, 8)
        self.Deep = Deep()
        self.raw_noise, self.raw_scale = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(8))


def noise_last(parts: Parts, x: torch.Tensor) -> torch.Tensor:
    kernel = torch.exp(-torch.cdist(x * parts.raw_scale.exp(), x))
    return kernel + parts.Softplus(parts.raw_noise) * torch.eye(len(x))


def noise_first(parts: Parts, x: torch.Tensor) -> torch.Tensor:
    noise = parts.Softplus(parts.raw_noise)
    return torch.exp(-torch.cdist(x * parts.raw_scale.exp(), x)) + noise * torch.eye(len(x))


def own_code_between(parts: Parts, x: torch.Tensor) -> torch.Tensor:
    first = parts.Linear(x) * parts.raw_scale.exp()
    second = (parts.raw_scale * x).sin()
    return parts.Softplus(parts.raw_noise) * parts.Linear(x.detach()) + first.cos() * second


def many_layers(parts: Parts, x: torch.Tensor) -> torch.Tensor:
    penalty = (parts.raw_scale.exp() * 2).sin()
    y = x.detach()
    return parts.Deep(y) + penalty


PROGRAMS = [noise_last, noise_first, own_code_between, many_layers]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_programs_own_nodes_go_to_no_module(program: Callable[[Parts, torch.Tensor], torch.Tensor]) -> None:
    parts = Parts()
    x = torch.randn(8, 8, requires_grad=True)
    with Oracle(parts) as oracle:
        for _ in range(2):
            program(parts, x).square().mean().backward()
    assert oracle.right_bytes > 0
    assert oracle.wrong_bytes == 0, dict(oracle.wrong)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("net", NETS, ids=lambda net: net.__name__)
def test_a_node_that_backward_creates_has_the_module_of_the_node_that_ran(net: type[nn.Module], times: int) -> None:
    model = net()
    with Oracle(model) as oracle:
        for _ in range(2):
            x = torch.randn(8, 8, requires_grad=True)
            y = model(x).tanh() * 2
            extra = model(x * 0.5).sigmoid()
            total = y
            for _ in range(times):
                (total,) = torch.autograd.grad(total.square().sum(), x, create_graph=True)
            (total.square().mean() + y.mean() + extra.mean()).backward()
    assert oracle.right_bytes > 0
    assert oracle.wrong_bytes == 0, dict(oracle.wrong)


def test_the_oracle_can_fail() -> None:
    model = Nested()
    with Oracle(model) as oracle:
        oracle.tracker.remove()
        model(torch.randn(4, 8)).sum().backward()
    assert oracle.wrong_bytes > 0


def test_the_stack_is_balanced_when_a_module_raises() -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    model = nn.Sequential(nn.Linear(8, 8), Raises())
    with Oracle(model) as oracle:
        with pytest.raises(KeyError, match="mine"):
            model(torch.randn(2, 8))
        assert oracle.phases.threads.stack == []


def test_save_deepcopy_script_and_fullgraph_compile_work_while_installed() -> None:
    model = Nested()
    with Oracle(nn.Linear(1, 1)) as oracle:
        torch.save(model, io.BytesIO())
        copy.deepcopy(model)
        torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    oracle.tracker.install()
    try:
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        x = torch.randn(4, 8)
        assert torch.equal(compiled(x), model(x))
    finally:
        oracle.tracker.remove()


def test_removing_restores_what_was_there() -> None:
    functions = nn.Module.__call__, torch.autograd.backward, torch.autograd.grad
    before = [function.__code__ for function in functions]
    with Oracle(nn.Linear(1, 1)):
        assert not any(function.__code__ is code for function, code in zip(functions, before, strict=True))
        assert (nn.Module.__call__, torch.autograd.backward, torch.autograd.grad) == functions
    assert all(function.__code__ is code for function, code in zip(functions, before, strict=True))


def test_installing_and_removing_recompiles_nothing() -> None:
    keep_uncompiled()
    torch._dynamo.reset()
    model = Nested()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(model, backend=counter)
    x = torch.randn(4, 8)
    oracle = Oracle(nn.Linear(1, 1))
    oracle.phases.start()
    compiled(x).sum().backward()
    oracle.tracker.install()
    compiled(x).sum().backward()
    oracle.tracker.remove()
    compiled(x).sum().backward()
    assert counter.frame_count == 1
    assert not oracle.errors
