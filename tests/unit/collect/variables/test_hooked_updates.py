"""Hooks for complete gradients are followed where operators of a backward pass are seen, and else left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.variables.hooked_updates import HookedUpdates
from gpuledger.collect.variables.updates import WeightUpdates

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("sees_operators", [True, False])
def test_a_pass_has_our_hooks_only_if_its_operators_are_seen(sees_operators: bool) -> None:
    model, registry = nn.Linear(4, 2, bias=False), ModuleRegistry()
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    registry.register(model)
    phases = Phases(lambda _token: None, TagTable())
    updates = WeightUpdates(TensorObservations(registry, lambda _: {}, lambda one: (-1, one.data_ptr())), phases)
    hooked = HookedUpdates(registry, updates, Guard(lambda _: None), sees_operators=sees_operators)
    followed: list[torch.Tensor] = []
    updates.on_kept = followed.append
    loss = model(torch.ones(3, 4)).sum()
    node = torch.autograd.graph.get_gradient_edge(model.weight).node
    assert hooked.are_expected() is sees_operators
    hooked.begin([(node, model.weight)], {})
    loss.backward(retain_graph=True)
    hooked.end()
    loss.backward()
    assert len(followed) == sees_operators
