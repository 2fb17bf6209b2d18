"""Values on a simulated GPU: known where the program makes them from real data, assumed where a model computes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.model.journal.journal import Action
from gpuledger.simulate.assumptions import ASSUMPTIONS, EXPECTED, INDICES, LARGEST, LEAST
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.conditions.numbers import UnknownNumber
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.dispatch import NotModelledError, SimulatedMode
from gpuledger.simulate.gpu.functions import float_of

pytestmark = pytest.mark.torch
SAID: list[str] = []


@contextmanager
def on_gpu(assumption: str = EXPECTED) -> Iterator[SimulatedMode]:
    SAID.clear()
    with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), SAID.append, assumption) as mode:
        yield mode


@pytest.fixture
def mode() -> Iterator[SimulatedMode]:
    with on_gpu() as made:
        yield made


def router(tokens: int, experts: int) -> torch.Tensor:
    """Return scores that no estimate computes."""
    return nn.Linear(64, experts).cuda()(torch.randn(tokens, 64, device="cuda")).softmax(-1)


def test_values_of_real_data_are_those_of_the_program(mode: SimulatedMode) -> None:
    labels = torch.arange(64).view(4, 16)
    labels[:, 10:] = -100
    on_card = labels.cuda()
    mask = on_card != -100
    assert mask.sum().item() == 40
    assert mask.nonzero().shape == (40, 2)
    assert on_card[mask].tolist() == labels[labels != -100].tolist()
    assert torch.randn(4, 16, 1024, 1024, device="cuda")[mask].shape == (40, 1024, 1024)
    assert torch.equal(on_card.cpu(), labels)
    assert on_card.unique().shape == labels.unique().shape
    assert torch.bincount(on_card.clamp(min=0).flatten()).shape == (58,)
    assert torch.repeat_interleave(torch.ones(3, device="cuda"), torch.tensor([1, 2, 3]).cuda()).shape == (6,)
    assert not mode.values.was_assumed
    assert not SAID


def test_values_follow_views_and_writes(mode: SimulatedMode) -> None:
    made = torch.empty(6, dtype=torch.int64, device="cuda").fill_(3)
    made[2] = 7
    made.view(2, 3).add_(1)
    assert made.tolist() == [4, 4, 8, 4, 4, 4]
    assert torch.full_like(made, 2).tolist() == [2] * 6
    assert made.new_zeros(2).tolist() == [0, 0]
    made.copy_(router(6, 3).argmax(-1) * nn.Linear(1, 6).cuda().weight.detach().view(-1).long())
    assert made.cpu().shape == (6,)
    assert mode.values.of(made) is None


def test_a_freed_tensor_leaves_no_values(mode: SimulatedMode) -> None:
    made = torch.arange(1000, device="cuda")
    assert mode.device.copied_bytes == 8000
    del made
    assert mode.device.copied_bytes == 0
    assert not mode.device.copies


def test_random_numbers_have_their_share_and_the_program_keeps_its_own(mode: SimulatedMode) -> None:
    before = torch.get_rng_state()
    masked = torch.rand(64, 512, device="cuda") < 0.15
    again = torch.rand(64, 512, device="cuda") < 0.15
    assert masked.float().mean().item() == pytest.approx(0.15, abs=0.01)
    assert not torch.equal(masked, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert not mode.values.was_assumed


def test_numbers_like_those_of_a_layer_and_counts_of_integers_are_computed(mode: SimulatedMode) -> None:
    hidden = router(64, 4)
    assert 0 < torch.rand_like(hidden).mean().item() < 1
    assert torch.randint_like(hidden, 3).max().item() == 2
    counts = torch.histc(torch.tensor([0, 1, 1, 3]).cuda().int(), bins=4, min=0, max=3)
    assert counts.tolist() == [1, 2, 0, 1]
    assert counts.dtype == torch.int32


def test_routing_is_near_uniform_and_said(mode: SimulatedMode) -> None:
    _, chosen = router(4096, 8).topk(2)
    counts = torch.bincount(chosen.flatten(), minlength=8).tolist()
    assert sum(counts) == 8192
    assert counts == pytest.approx([1024] * 8, rel=0.4)
    assert all(len(set(row)) == 2 for row in chosen.tolist())
    assert [int((chosen == expert).nonzero().shape[0]) for expert in range(8)] == counts
    assert mode.values.was_assumed
    assert mode.values.kinds == {INDICES}
    assert any("test_simulated_values.py" in sentence and "assumed" in sentence for sentence in SAID)


@pytest.mark.parametrize("best", [1, 2])
def test_the_shares_of_experts_vary_around_equal_ones(best: int, mode: SimulatedMode) -> None:
    """Tokens of a batch are related, so their experts vary more from batch to batch than independent ones."""
    scores = router(4096, 8)
    counts = []
    for _ in range(60):
        chosen = scores.argmax(-1) if best == 1 else scores.topk(best).indices
        counts.append(torch.bincount(chosen.flatten(), minlength=8).cpu())
    shares = torch.stack(counts) / (best * 4096 / 8)
    assert shares.mean(0).tolist() == pytest.approx([1.0] * 8, abs=0.05)
    assert 0.07 < shares.std().item() < 0.13  # of independent ones, at most 0.04
    assert shares.max().item() < 1.5


@pytest.mark.parametrize(("assumption", "routed", "selected"), [(LEAST, 512, 0), (LARGEST, 512, 512 * 4)])
def test_the_interval_has_the_same_experts_for_all_and_nothing_or_all_of_a_mask(
    assumption: str, routed: int, selected: int
) -> None:
    with on_gpu(assumption):
        scores = router(512, 4)
        assert (scores.topk(1).indices == 0).nonzero().shape[0] == routed
        assert scores[scores > 0.25].shape == (selected,)
        assert scores[scores.view(-1)[: 512 * 4].view(512, 4) != 0].shape == (selected,)


@pytest.mark.parametrize("assumption", ASSUMPTIONS)
def test_indices_are_the_same_for_both_extremes_and_masks_are_not(assumption: str) -> None:
    with on_gpu(assumption) as mode:
        scores = router(512, 4)
        scores[(scores.argmax(-1) == 0).nonzero()]
        assert mode.values.was_assumed
        assert not mode.values.has_extremes
        scores[scores > 0.25]
        assert mode.values.has_extremes


def test_a_mask_is_half_set_each_time_it_is_used(mode: SimulatedMode) -> None:
    scores = router(2048, 4)
    mask = scores > 0.25
    first = scores[mask]
    assert first.shape == scores.masked_select(mask).shape
    assert first.numel() + scores[~mask].numel() == scores.numel()
    assert first.numel() == pytest.approx(4096, rel=0.1)


def test_the_positions_of_a_mask_are_allocated_while_it_selects(mode: SimulatedMode) -> None:
    mask = (torch.arange(1 << 16) % 2 == 0).cuda()
    data = torch.zeros(1 << 16, 4, device="cuda")
    before = len(mode.device.events)
    data[mask]
    sizes = [event[2] for event in mode.device.events[before:] if event[0] == Action.ALLOC]
    assert sizes == [(1 << 15) * 8, (1 << 15) * 16]


def test_counts_with_a_least_length_need_no_values(mode: SimulatedMode) -> None:
    unknown = (nn.Linear(1, 64).cuda().weight.detach().view(-1) * 9).long()
    assert torch.bincount(unknown, minlength=10).shape == (10,)
    with pytest.raises(NotModelledError, match="depends on values"):
        torch.bincount(unknown)
    assert unknown.unique().shape == (64,)
    assert any("largest possible" in sentence for sentence in SAID)


def test_the_float_of_a_value_that_is_not_computed_decides_nothing(mode: SimulatedMode) -> None:
    number = float_of(mode)
    unknown = number(router(4, 4).detach().sum())
    assert isinstance(2.0 ** number(unknown) - 1, UnknownNumber)
    assert not isinstance(number(torch.ones(1, device="cuda")), UnknownNumber)
    assert number("2.5") == 2.5


def test_a_check_is_passed_where_a_mask_was_assumed(mode: SimulatedMode) -> None:
    """Half of the mask was assumed to be set, which says nothing about what the program refuses."""
    scores = router(64, 64)
    mask = scores > 0
    assert len(scores[mask]) == pytest.approx(2048, rel=0.05)
    assert bool(mask.any())
    if mask.any():
        raise AssertionError
    if not mask.all().item():
        raise AssertionError


def test_tensors_of_different_shapes_are_not_equal(mode: SimulatedMode) -> None:
    scores = router(64, 8)
    assert not torch.equal(scores, scores[:32])
    assert not SAID
    assert torch.equal(scores, scores * 2)
    assert any("treated as equal" in sentence for sentence in SAID)


@pytest.mark.parametrize("grad", [False, True])
def test_where_has_the_places_of_half_a_mask(mode: SimulatedMode, grad: bool) -> None:
    with torch.set_grad_enabled(grad), torch.inference_mode(not grad):
        mask = router(64, 64).long() == 1
        rows, columns = torch.where(mask)
        others = torch.nonzero(mask, as_tuple=True)
    assert [len(one) for one in others] == [len(rows)] * 2
    assert rows.shape == columns.shape
    assert len(rows) == pytest.approx(2048, rel=0.05)


def test_suppression_keeps_all_boxes(mode: SimulatedMode) -> None:
    """The operator is declared as torchvision declares its own, whose result has an unknown size."""

    @torch.library.custom_op("tests_of_values::nms", mutates_args=())
    def nms(boxes: torch.Tensor, scores: torch.Tensor, limit: float) -> torch.Tensor:
        raise AssertionError

    @nms.register_fake
    def _(boxes: torch.Tensor, scores: torch.Tensor, limit: float) -> torch.Tensor:
        return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)

    assert nms(router(100, 4), router(100, 1)[:, 0], 0.5).shape == (100,)
    assert any("nms" in sentence and "largest" in sentence for sentence in SAID)


def test_a_loss_of_real_data_has_its_value(mode: SimulatedMode) -> None:
    ones = torch.ones(2, 3, dtype=torch.long).cuda()
    assert nn.functional.mse_loss(ones.double(), (ones * 3).double()).item() == 4.0
    assert SAID == []


@pytest.mark.parametrize(("share", "keep"), [(0.9, lambda data: data >= 0.1), (0.25, lambda data: data < 0.25)])
def test_a_mask_of_uniform_random_numbers_has_the_share_of_its_bound(share: float, keep: Any) -> None:
    """As of ``dropout_edge``, also where there are too many numbers to have values."""
    count = 1 << 20
    found = {}
    for assumption in ASSUMPTIONS:
        with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), lambda _: None, assumption):
            found[assumption] = int(keep(torch.rand(count, device="cuda")).nonzero().shape[0])
    least, expected, largest = found[LEAST], found[EXPECTED], found[LARGEST]
    assert least < expected < largest < least * 1.05
    assert expected == pytest.approx(share * count, rel=0.01)
