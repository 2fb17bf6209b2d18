"""What calls without gradients write is found by versions of tensors where no operators are seen, as on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.inputs.caches import MOST_SEARCHES, Caches
from gpuledger.model.accounts import Identity
from gpuledger.model.journal.journal import Part

pytestmark = pytest.mark.torch


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys: Tensor
        self.register_buffer("keys", torch.zeros(4, 8))
        self.register_buffer("mask", torch.ones(8))
        self.values = [torch.zeros(4, 8)]
        self.norm = nn.BatchNorm1d(8)
        self.position = 0

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        at = self.position % 4
        self.keys[at], self.values[0][at] = x[0], x[0]
        state.copy_(x[0])
        self.position += 1
        return self.norm(x) * self.mask


def written(*, gradients: bool = False, calls_before: int = 0) -> set[str]:
    """Return which tensors a call of a decoder was seen to write, after others that wrote nothing."""
    registry, model, state = ModuleRegistry(), Decoder(), torch.zeros(8)
    registry.register(model)
    observed = TensorObservations(registry, lambda _: {-1: (0, 0)}, lambda tensor: (-1, tensor.data_ptr()))
    caches, part, x = Caches(observed), Part(), torch.ones(2, 8)
    with torch.set_grad_enabled(gradients):
        for _ in range(calls_before):
            caches.call_began(0, (), {})
            caches.call_ended(0, None)
        caches.call_began(0, (x, state), {})
        caches.call_ended(0, model(x, state))
    observed.drain(part)
    names = {one.data_ptr(): name for name, one in model.named_buffers()}
    names |= {model.values[0].data_ptr(): "values", state.data_ptr(): "state", x.data_ptr(): "x"}
    found = part.arrays()
    is_cache = found["identities.kind"] == Identity.CACHE if found else []
    return {names[address] for address in found["identities.address"][is_cache].tolist()} if found else set()


def test_a_call_writes_arguments_buffers_and_attributes() -> None:
    """Those of batch normalization are statistics, and the others are read only."""
    assert written() == {"keys", "values", "state"}


def test_modules_are_searched_before_the_first_calls_only() -> None:
    assert written(calls_before=MOST_SEARCHES - 1) == {"keys", "values", "state"}
    assert written(calls_before=MOST_SEARCHES) == {"state"}


def test_a_call_with_gradients_has_no_caches() -> None:
    assert not written(gradients=True)
