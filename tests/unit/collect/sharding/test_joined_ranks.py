"""A training in torch's ``Join`` is known to be one: its ranks may take different numbers of steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from fake_ranks import fake_ranks
from recorded import record_own
from torch import distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from gpuledger.collect.sharding.joined_ranks import JoinedRanks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with fake_ranks(2):
        yield


def parallel() -> DistributedDataParallel:
    model = DistributedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(None, noop_hook)  # the process group of the test reduces nothing
    return model


def train(model: nn.Module) -> nn.Module:
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    return model


@pytest.mark.parametrize("way", ["model.join()", "Join", "", "model.join(enable=False)"])
def test_a_training_in_join_is_known(way: str) -> None:
    def program(_: object) -> object:
        model = parallel()
        contexts = {
            "model.join()": lambda: model.join(),
            "Join": lambda: Join([model]),
            "": nullcontext,
            "model.join(enable=False)": lambda: model.join(enable=False),
        }
        with contexts[way]():  # type: ignore[no-untyped-call,operator]
            return train(model)

    manifest = record_own(program).manifest
    assert (manifest.joins_ranks, manifest.notes) == (way in ("model.join()", "Join"), ())


def test_a_recording_that_begins_inside_join_knows_it() -> None:
    model = parallel()
    with model.join():  # type: ignore[no-untyped-call]
        assert record_own(lambda _: train(model)).manifest.joins_ranks


def test_a_torch_without_this_class_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JoinedRanks, "module", "torch.distributed")
    monkeypatch.setattr("gpuledger.collect.sharding.joined_ranks.JOIN_MODULE", "torch.distributed")
    (note,) = record_own(lambda _: train(parallel())).manifest.notes
    assert note.startswith("It is not known whether ranks may take different numbers of steps")
