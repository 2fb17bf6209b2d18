"""GPUs on which the rules were not measured: their figures, workspaces, intervals and verdicts."""

from __future__ import annotations

import pytest

from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.errors import UsageError
from gpuledger.model.journal.journal import Action, Part
from gpuledger.model.journal.reading import journal_of
from gpuledger.simulate.catalogue import NOT_MODELLED, catalogue, find_card, make_card
from gpuledger.simulate.convolutions.convolutions import CUDNN, needs_workspace
from gpuledger.simulate.estimate.fit import (
    EDGE,
    FITS,
    FOLLOWED,
    GUESSED,
    TOO_LARGE,
    Assumed,
    Requests,
    fit_card,
    kind_on,
    peaks_on,
)
from gpuledger.simulate.interval import upper_factor

MIB, GIB = 1 << 20, 1 << 30


def test_contexts_grow_with_the_multiprocessors_and_libraries_with_the_generation() -> None:
    cards = catalogue()
    small, large = cards["rtx-3060"], cards["h200"]
    share = small.multiprocessors / large.multiprocessors
    assert small.context_bytes.value == int(large.context_bytes.value * share)
    assert not small.context_bytes.is_own
    assert small.library_bytes.is_own
    assert cards["a10"].library_bytes.value == small.library_bytes.value < large.library_bytes.value
    assert cards["b200"].library_bytes.value == large.library_bytes.value
    assert 0 <= small.with_handles(0).library_bytes.value <= small.library_bytes.value


@pytest.mark.parametrize("key", ["rtx-3060", "rtx-4060", "a100-40gb"])
def test_the_driver_keeps_what_other_people_saw(key: str) -> None:
    """xMem's programs printed the total that CUDA reports."""
    reported = {"rtx-3060": 12622168064, "rtx-4060": 8318222336, "a100-40gb": 42474471424}
    assert find_card(key).usable_bytes == pytest.approx(reported[key], abs=MIB)


def test_a_gpu_is_made_of_its_memory_and_capability() -> None:
    made = make_card(24 * GIB, (8, 9))
    assert made.total_bytes == 24 * GIB
    assert made.compute_capability == (8, 9)
    assert made.multiprocessors == find_card("rtx-4090").multiprocessors or made.multiprocessors == 58
    assert not made.context_bytes.is_own
    assert find_card(made.key) == made
    assert kind_on(made, GUESSED) != GUESSED


@pytest.mark.parametrize(("memory_bytes", "capability", "said"), [
    (100 * MIB, (8, 9), "less than a CUDA context needs"),
    (24 * GIB, (5, 2), "no GPU with this major version"),
])  # fmt: skip
def test_a_gpu_that_cannot_be_is_refused(memory_bytes: int, capability: tuple[int, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_card(memory_bytes, capability)


@pytest.mark.parametrize("key", NOT_MODELLED)
def test_a_gpu_of_another_vendor_is_refused_by_name(key: str) -> None:
    with pytest.raises(UsageError, match=r"Instinct.* is not modelled"):
        find_card(key)


def test_float32_convolutions_need_no_workspace_below_hopper() -> None:
    torch = pytest.importorskip("torch")
    single, half = torch.empty(0), torch.empty(0, dtype=torch.float16)
    assert [needs_workspace(data, (8, 6)) for data in (single, half)] == [False, True]
    assert [needs_workspace(data, (9, 0)) for data in (single, half)] == [True, True]


def test_the_interval_is_wider_where_the_rules_were_not_measured() -> None:
    there, here = find_card("rtx-4090"), find_card("h100-80gb")
    assert kind_on(here, FOLLOWED) == FOLLOWED
    for kind in (FOLLOWED, GUESSED):
        assert upper_factor(0.95, kind_on(there, kind)) > 1
        assert peaks_on(there, GIB, GIB, 0.95, kind).kind == kind
    assert upper_factor(0.95, kind_on(there, GUESSED)) > upper_factor(0.95, kind_on(there, FOLLOWED))


def requests_of(*events: tuple[int, int, int, int]) -> Requests:
    """Return requests of (action, block, bytes, operator)."""
    part = Part()
    part.facts["operators"] = ["aten.mm.default", CUDNN]
    for action, block, size, operator in events:
        part.add(
            "events", device_idx=0, action=action, address=block, bytes=size, stream=0, time_ns=0, tag_id=-1,
            stack_id=-1, operator_id=operator,
        )  # fmt: skip
    return Requests(journal_of([part]), AllocatorSettings())


ALLOC, FREE = int(Action.ALLOC), int(Action.FREE_REQUESTED)


def test_cudnn_does_without_a_workspace_that_the_gpu_has_no_room_for() -> None:
    requests = requests_of((ALLOC, 1, 6 * GIB, 0), (ALLOC, 2, 8 * GIB, 1), (FREE, 2, 8 * GIB, -1), (ALLOC, 3, GIB, 0))
    full = requests.replay(capacity_bytes=10 * GIB)
    assert full is not None
    assert full.counters.peak_reserved_bytes == 7 * GIB
    assert requests.replay(capacity_bytes=6 * GIB) is None
    bare = requests.without_cudnn().replay()
    assert bare is not None
    assert bare.counters.peak_reserved_bytes == 7 * GIB


def test_near_the_limit_cached_memory_is_returned() -> None:
    """On a GPU with less room than the cached memory, a program reserves less. So did VGG-19 on an RTX 3060."""
    card = find_card("t4")
    room = card.usable_bytes - card.outside_bytes
    first, second = room // 2 // MIB * MIB, int(room * 0.7) // MIB * MIB
    requests = requests_of((ALLOC, 1, first, 0), (FREE, 1, first, -1), (ALLOC, 2, second, 0))
    peaks = peaks_on(card, second, first + second, 0.95)
    found = fit_card(card, peaks, requests, 0.95)
    assert peaks.process_bytes > card.usable_bytes
    assert found.verdict == EDGE
    assert second + card.outside_bytes <= found.process_bytes <= card.usable_bytes


def test_fits_is_judged_by_the_upper_bound() -> None:
    """An estimate below the capacity with an upper bound above it is on the edge, at each side of the boundary."""
    card = find_card("t4")
    room = card.usable_bytes - card.outside_bytes
    factor = upper_factor(0.95, kind_on(card, GUESSED))
    verdicts = []
    for process_bytes in (int(card.usable_bytes / factor) - MIB, int(card.usable_bytes / factor) + 2 * MIB):
        reserved = process_bytes - card.outside_bytes
        requests = requests_of((ALLOC, 1, reserved, 0))
        peaks = peaks_on(card, reserved, reserved, 0.95, GUESSED)
        assert peaks.process_bytes < card.usable_bytes
        verdicts.append(fit_card(card, peaks, requests, 0.95).verdict)
    assert verdicts == [FITS, EDGE]
    assert fit_card(
        card, peaks_on(card, room * 2, room * 2, 0.95), requests_of((ALLOC, 1, room * 2, 0)), 0.95
    ).verdict == (TOO_LARGE)


def test_the_largest_of_assumed_sizes_raises_the_upper_bound() -> None:
    card = find_card("h200")
    plain = peaks_on(card, GIB, GIB, 0.95, FOLLOWED)
    assumed = peaks_on(card, GIB, GIB, 0.95, FOLLOWED, Assumed(None, 2 * GIB))
    assert assumed.process_bytes == plain.process_bytes
    assert assumed.upper_bytes - plain.upper_bytes >= GIB
    unknown = peaks_on(card, GIB, GIB, 0.95, FOLLOWED, Assumed(0, None))
    assert unknown.upper_bytes == plain.upper_bytes
