"""The catalogue, settings of the allocator in words, the interval, and the search for the largest batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from estimated_requests import requests_of_rows
from hypothesis import given
from hypothesis import strategies as st
from present import present

from gpuledger.analyze.allocator.alloc_conf import parse_alloc_conf
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.errors import UsageError
from gpuledger.model.accounts import CATEGORIES
from gpuledger.model.journal.journal import Action, Part
from gpuledger.model.journal.reading import journal_of
from gpuledger.simulate.assumptions import INDICES, LOOPS, MASKS, describe_assumed
from gpuledger.simulate.catalogue import HANDLES, catalogue, find_card
from gpuledger.simulate.elsewhere import REPLACE
from gpuledger.simulate.estimate.batch import find_argument, set_argument
from gpuledger.simulate.estimate.fit import (
    EDGE,
    FITS,
    FOLLOWED,
    GUESSED,
    NO_CHANGE,
    TOO_LARGE,
    Assumed,
    CompiledChange,
    Peaks,
    Requests,
    assumed_between,
    compiled_change,
    fit_card,
    fit_catalogue,
    kind_of,
    later_steps_bytes,
    peaks_of,
    peaks_on,
    with_full_buffers,
)
from gpuledger.simulate.estimate.search import Trial, find_largest
from gpuledger.simulate.estimate.steps.later_steps import grown_after
from gpuledger.simulate.interval import (
    LEAST_EXCESS,
    category_spread,
    compiled_errors,
    excess_factor,
    grid_errors,
    later_growth_errors,
    lower_factor,
    program_errors,
    tail_excess,
    upper_factor,
    worst_by_model,
)
from gpuledger.simulate.traits import CAPTURE

MIB, GIB = 1 << 20, 1 << 30


def test_every_figure_says_where_it_comes_from() -> None:
    for card in catalogue().values():
        for figure in card.figures().values():
            assert figure.value > 0
            assert figure.source in (
                "measured", "datasheet", "measured on the H200", "measured on the RTX 3060", "scaled from the H200",
            )  # fmt: skip
            assert bool(figure.where) == (figure.source != "datasheet")
        assert card.outside_bytes < card.usable_bytes < card.total_bytes


@pytest.mark.parametrize("text", ["h200", "H200", "NVIDIA H200", "nvidia h200"])
def test_a_card_is_found_by_either_name(text: str) -> None:
    assert find_card(text).key == "h200"


def test_an_unknown_card_is_told_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_card("a100")
    assert "a100-80gb" in str(caught.value.hint)
    with pytest.raises(UsageError):
        find_card("")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", AllocatorSettings()),
        ("expandable_segments:True", AllocatorSettings(expandable=True)),
        ("max_split_size_mb:64,expandable_segments:False", AllocatorSettings(max_split_bytes=64 * MIB)),
        ("garbage_collection_threshold:0.8", AllocatorSettings()),
    ],
)
def test_settings_are_read_as_torch_reads_them(text: str, expected: AllocatorSettings) -> None:
    assert parse_alloc_conf(text) == expected


def test_rounding_by_size_class() -> None:
    everywhere = parse_alloc_conf("roundup_power2_divisions:4")
    assert everywhere.round_up(1200 * MIB) == 1280 * MIB
    some = parse_alloc_conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert some.round_up(600 * MIB) == 768 * MIB
    assert some.round_up(3000 * MIB) == 3072 * MIB


@pytest.mark.parametrize(
    "text", ["expandable_segments", "expandable_segments:maybe", "max_split_size_mb:x", "nonsense:1", "backend:async"]
)
def test_settings_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_alloc_conf(text)


@given(st.integers(0, 5000), st.integers(1, 3000))
def test_the_largest_value_is_found(limit: int, start: int) -> None:
    """Whatever the limit and the start; beyond 256 to within one part in 256."""
    found = find_largest(lambda value: Trial(value, value, FITS if value <= limit else TOO_LARGE), start)
    if limit == 0:
        assert found.largest is None
        assert repr(found).startswith("<Search: nothing fits, ")
        return
    assert found.largest is not None
    assert found.largest <= limit < found.largest + max(2, found.largest // 128)
    assert [trial.value for trial in found.trials] == sorted({trial.value for trial in found.trials})


@given(st.integers(1, 1 << 16), st.integers(1, 1 << 10), st.integers(1, 1 << 20), st.integers(0, 1 << 20))
def test_a_line_of_memory_is_searched_in_few_trials(limit: int, start: int, slope: int, fixed: int) -> None:
    usable_bytes = fixed + limit * slope

    def try_value(value: int) -> Trial:
        upper_bytes = fixed + value * slope
        return Trial(value, upper_bytes, FITS if upper_bytes <= usable_bytes else TOO_LARGE, upper_bytes)

    found = find_largest(try_value, start, usable_bytes=usable_bytes)
    assert found.largest is not None
    assert limit - limit // 256 <= found.largest <= limit
    if limit <= start * 16 and start <= 2 * limit:
        assert len(found.trials) <= 6


@given(
    st.integers(8, 1 << 12), st.integers(1, 1 << 6), st.integers(4, 400), st.integers(0, 10_000), st.integers(1, 500)
)
def test_memory_that_grows_by_steps_is_searched_in_few_trials(
    limit: int, start: int, slope: int, fixed: int, step_bytes: int
) -> None:
    """As the allocator's memory does. Neighbours often need the same, and one trial says what does not grow."""

    def needed(value: int) -> int:
        return fixed - -value * slope // step_bytes * step_bytes

    usable_bytes = needed(limit)

    def try_value(value: int) -> Trial:
        verdict = FITS if needed(value) <= usable_bytes else TOO_LARGE
        return Trial(value, needed(value), verdict, needed(value), least_bytes=fixed)

    found = find_largest(try_value, start, usable_bytes=usable_bytes)
    tried = {trial.value: trial.verdict for trial in found.trials}
    assert found.largest is not None
    assert tried[found.largest] == FITS
    assert any(verdict != FITS for value, verdict in tried.items() if found.largest < value)
    assert found.largest >= limit - limit // 256
    if start <= limit <= 16 * start and step_bytes <= 4 * slope:
        assert len(found.trials) <= 8


def test_the_first_trial_predicts_the_largest_value() -> None:
    def try_value(value: int) -> Trial:
        upper_bytes = 600 + 10 * value
        return Trial(value, upper_bytes, FITS if upper_bytes <= 1000 else TOO_LARGE, upper_bytes, least_bytes=600)

    found = find_largest(try_value, 8, usable_bytes=1000)
    assert (found.largest, [trial.value for trial in found.trials]) == (40, [8, 40, 41])


def test_memory_that_is_not_a_line_is_searched_by_halves() -> None:
    def try_value(value: int) -> Trial:
        return Trial(value, 1, FITS if value <= 1000 else TOO_LARGE, value**3 if value < 900 else 10**12)

    found = find_largest(try_value, 8, usable_bytes=10**9)
    assert found.largest is not None
    assert 996 <= found.largest <= 1000
    assert len(found.trials) < 32


def test_more_memory_than_any_batch_needs_ends() -> None:
    found = find_largest(lambda value: Trial(value, 1, FITS), 1, most=1024)
    assert found.largest == 1024
    assert repr(found) == "<Search: 1,024 fits, 11 values tried>"


@given(st.floats(0.5, 0.99), st.sampled_from([FOLLOWED, GUESSED]))
def test_the_upper_end_covers_the_share_asked_for_of_models_it_does_not_know(level: float, kind: str) -> None:
    """Each model against the bound that is made of the others; one of them may be above by chance."""
    errors, worst = grid_errors(kind), worst_by_model(grid_errors(kind))
    above = [
        model
        for model, ratio in worst.items()
        if ratio > excess_factor({name: one for name, one in errors.items() if name.partition("-")[0] != model}, level)
    ]
    assert len(above) <= (1 - level) * len(worst) + 1
    together = errors | program_errors(kind)
    assert upper_factor(level, kind) == max(excess_factor(errors, level), excess_factor(together, level)) > 1


@given(st.floats(0.5, 0.99), st.sampled_from([FOLLOWED, GUESSED]))
def test_the_lower_end_covers_the_share_asked_for_of_models_it_does_not_know(level: float, kind: str) -> None:
    errors = grid_errors(kind) | program_errors(kind)
    models = worst_by_model({name: 1 / ratio for name, ratio in errors.items()})
    below = []
    for model, ratio in models.items():
        others = {name: 1 / one for name, one in errors.items() if name.partition("-")[0] != model}
        below.append(ratio > excess_factor(others, level))
    assert sum(below) <= (1 - level) * len(models) + 1
    trainings = {name: 1 / ratio for name, ratio in grid_errors(kind).items()}
    assert lower_factor(level, kind) >= excess_factor(trainings, level) > 1


@pytest.mark.parametrize("kind", [FOLLOWED, GUESSED])
def test_programs_that_were_estimated_well_make_no_interval_narrower(kind: str) -> None:
    assert program_errors(kind)
    trainings = grid_errors(kind)
    assert upper_factor(0.95, kind) >= excess_factor(trainings, 0.95)
    assert lower_factor(0.95, kind) >= excess_factor({name: 1 / ratio for name, ratio in trainings.items()}, 0.95)


@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=40), st.floats(0.5, 0.99), st.floats(0.5, 0.99))
def test_a_higher_level_never_has_a_lower_end(ratios: list[float], one: float, other: float) -> None:
    errors = {f"model{number}-adam": ratio for number, ratio in enumerate(ratios)}
    assert excess_factor(errors, min(one, other)) <= excess_factor(errors, max(one, other))


def test_where_models_suffice_the_end_is_one_of_them() -> None:
    """Of 19 models the next is below the largest with probability 0.95, below the second largest with 0.9."""
    errors = {f"model{number}-adam": 1.0 + number / 100 for number in range(1, 20)}
    assert excess_factor(errors, 0.95) == 1.19
    assert excess_factor(errors, 0.90) == 1.18
    assert excess_factor({f"only-{name}": ratio for name, ratio in errors.items()}, 0.5) == 1.19


def test_beyond_what_models_can_tell_the_tail_goes_on() -> None:
    """Exponential excesses of six models: one in twenty of the next ones is above, though the mean is not known."""
    drawn = 1.0 + np.random.default_rng(7).exponential(0.02, size=(4000, 7))
    above = [row[6] > 1.0 + tail_excess(list(row[:6]), 0.95) for row in drawn]
    assert np.mean(above) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(
    ("ratios", "level", "excess"),
    [
        ([0.9, 1.0], 0.95, 0.0),
        ([1.25], 0.95, 0.25 * (1 / 0.05 - 1)),
        ([1.25, 0.9, 0.9], 0.95, 0.25 * (0.5 / 0.05 - 1)),
        ([1.25, 1.5, 0.9], 0.9, 0.75 * ((0.75 / 0.1) ** 0.5 - 1)),
        ([1.0, 1.25], 0.9, 0.25 * (2 / 3 / 0.1 - 1)),  # an estimate without error has no excess
        ([1.25, 0.9, 0.9, 0.9], 0.5, 0.0),  # fewer than half of them have one
    ],
)
def test_the_tail_is_exponential_above_1(ratios: list[float], level: float, excess: float) -> None:
    """With m of n above 1, it is their sum times ((m + 1) / (n + 1) / (1 - level)) ** (1 / m) - 1."""
    assert tail_excess(ratios, level) == pytest.approx(excess, rel=1e-12)
    errors = {f"model{number}-adam": ratio for number, ratio in enumerate(ratios)}
    if level * (len(ratios) + 1) > len(ratios):
        assert excess_factor(errors, level) == pytest.approx(max(1 + excess, *ratios, 1 + LEAST_EXCESS), rel=1e-12)


def test_the_end_beyond_all_models_is_never_below_one_of_them() -> None:
    """The tail of a large and a small excess is shorter than the large one."""
    assert 1 + tail_excess([1.5, 1.0001], 0.67) < 1.5
    assert excess_factor({"a-sgd": 1.5, "b-sgd": 1.0001}, 0.67) == 1.5


def test_estimates_that_were_never_passed_have_the_least_interval() -> None:
    assert excess_factor({"a-sgd": 0.97, "b-adam": 1.0}, 0.999) == 1.0 + LEAST_EXCESS


def test_a_program_with_convolutions_has_the_wider_interval() -> None:
    """Which algorithm cuDNN takes is guessed, so what it was off by counts for those programs alone."""
    card = find_card("h200")
    plain = peaks_on(card, GIB, GIB, 0.95, kind_of(["aten.mm.default", "embedding backward"]))
    guessed = peaks_on(card, GIB, GIB, 0.95, kind_of(["aten.mm.default", "aten.convolution.default"]))
    assert (plain.kind, guessed.kind) == (FOLLOWED, GUESSED)
    assert plain.process_bytes == guessed.process_bytes
    assert plain.process_bytes < plain.upper_bytes < guessed.upper_bytes


@pytest.mark.parametrize(
    ("operators", "kind"),
    [
        ([], FOLLOWED),
        (["aten.mm.default", "a convolution"], FOLLOWED),
        (["aten.mm.default", "aten.convolution_backward.default"], GUESSED),
        (["aten._cudnn_rnn.default", "aten.mm.default"], GUESSED),
        (["aten.mm.default", CAPTURE], GUESSED),
    ],
)
def test_algorithms_are_guessed_for_convolutions_and_recurrent_layers(operators: list[str], kind: str) -> None:
    assert kind_of(operators) == kind


@pytest.mark.parametrize("key", ["t4", "h200"])
@pytest.mark.parametrize("kind", [FOLLOWED, GUESSED])
@pytest.mark.parametrize(
    ("assumed", "largest_bytes"),
    [(None, GIB), (Assumed(1, None), GIB), (Assumed(1, GIB - 1), GIB), (Assumed(1, 5 * GIB), 5 * GIB)],
)
def test_the_upper_bound_is_for_the_largest_assumed_values_and_the_errors_on_that_gpu(
    key: str, kind: str, assumed: Assumed | None, largest_bytes: int
) -> None:
    card, change = find_card(key), CompiledChange(7, 9)
    errors = kind if key == "h200" else f"{kind} on another GPU"
    upper_bytes = int((largest_bytes + card.outside_bytes) * upper_factor(0.95, errors)) + 9
    below = lower_factor(0.95, errors)
    expected = Peaks(3, GIB, GIB + card.outside_bytes, upper_bytes, kind, assumed, change, lower_factor=below)
    assert peaks_on(card, 3, GIB, 0.95, kind, assumed, change) == expected
    least_bytes = GIB if assumed is None else 1
    assert expected.least_bytes == least_bytes + card.outside_bytes - 7
    assert expected.lower_bytes == int(expected.least_bytes / below)


@pytest.mark.parametrize(
    ("assumed", "least_bytes"),
    [(None, GIB), (Assumed(None, None), GIB), (Assumed(MIB, 2 * GIB), MIB), (Assumed(2 * GIB, MIB), MIB)],
)
def test_the_lower_bound_is_for_the_least_assumed_values(assumed: Assumed | None, least_bytes: int) -> None:
    """Less memory can also be that of the largest values, such as of the boxes that a sampler then leaves out."""
    card = find_card("h200")
    assert peaks_on(card, GIB, GIB, 0.95, FOLLOWED, assumed).least_bytes == least_bytes + card.outside_bytes


def test_a_program_that_fits_with_the_least_assumed_values_is_on_the_edge() -> None:
    card = find_card("t4")
    size_bytes = card.usable_bytes + GIB
    for least_bytes, verdict in ((GIB, EDGE), (size_bytes, TOO_LARGE)):
        peaks = peaks_on(card, size_bytes, size_bytes, 0.95, FOLLOWED, Assumed(least_bytes, None))
        assert fit_card(card, peaks, requests_of(size_bytes), 0.95).verdict == verdict


def test_a_program_without_matrix_products_holds_no_handles() -> None:
    card = find_card("h200")
    assert card.with_handles(2).outside_bytes == card.outside_bytes
    assert card.outside_bytes - card.with_handles(0).outside_bytes == 128 * MIB


def requests_of(
    *sizes_bytes: int, first: Action = Action.ALLOC, elsewhere: dict[str, object] | None = None
) -> Requests:
    """A program that allocates sizes and frees each before the next."""
    rows = [
        (int(action), number, size_bytes)
        for number, size_bytes in enumerate(sizes_bytes, start=1)
        for action in (first, Action.FREE_REQUESTED)
    ]
    return requests_of_rows(rows, elsewhere)


def test_three_verdicts() -> None:
    """Cached segments may fill the GPU: the allocator gives them back, so such a program is on the edge, not out."""
    card = find_card("t4")
    room = card.usable_bytes - card.outside_bytes
    small, middle = room // 2, int(room * 0.75) // (2 * MIB) * 2 * MIB
    largest = room // (2 * MIB) * 2 * MIB
    cases = (((small,), FITS), ((small, middle), EDGE), ((largest,), EDGE), ((largest + 2 * MIB,), TOO_LARGE))
    for sizes, expected in cases:
        requests = requests_of(*sizes)
        plain = requests.replay()
        assert plain is not None
        counters = plain.counters
        peaks = peaks_on(card, counters.peak_allocated_bytes, counters.peak_reserved_bytes, 0.9)
        assert fit_card(card, peaks, requests, 0.9).verdict == expected


def test_a_larger_card_never_does_worse() -> None:
    requests = requests_of(*(size * GIB for size in (3, 7, 11, 19)))
    allocator = requests.replay()
    assert allocator is not None
    peaks = peaks_on(find_card("h200"), 19 * GIB, allocator.counters.peak_reserved_bytes, 0.95)
    order = [FITS, EDGE, TOO_LARGE]
    ranks = [order.index(fit.verdict) for fit in fit_catalogue(peaks, requests, 0.95)]
    assert ranks == sorted(ranks)
    assert ranks[0] < ranks[-1]


def test_the_argument_is_found_in_both_spellings() -> None:
    for words in (("t.py", "--batch-size", "8", "--lr", "1"), ("t.py", "--lr", "1", "--batch-size=8")):
        place, value = find_argument(words, "batch-size")
        assert value == 8
        assert find_argument(set_argument(words, place, 64), "--batch-size")[1] == 64
    for wrong in (("t.py",), ("t.py", "--batch-size", "0"), ("t.py", "--batch-size=many")):
        with pytest.raises(UsageError):
            find_argument(wrong, "batch-size")


def test_the_upper_bound_decides_whether_a_program_fits() -> None:
    """An estimate below the GPU's memory is not enough: on the edge, until the upper bound is below it as well."""
    card = find_card("t4")
    reserved_bytes = card.usable_bytes - card.outside_bytes - MIB
    requests = requests_of(reserved_bytes // (2 * MIB) * 2 * MIB)
    peaks = peaks_on(card, reserved_bytes, reserved_bytes, 0.95)
    assert peaks.process_bytes < card.usable_bytes < peaks.upper_bytes
    assert fit_card(card, peaks, requests, 0.95).verdict == EDGE
    upper_mib = -(-peaks.upper_bytes // MIB) + card.driver_reserve_mib.value
    for memory_mib, verdict in ((upper_mib - 1, EDGE), (upper_mib, FITS)):
        found = fit_card(replace(card, memory_mib=replace(card.memory_mib, value=memory_mib)), peaks, requests, 0.95)
        assert (found.verdict, found.upper_bytes) == (verdict, peaks.upper_bytes)


def test_a_compiled_program_changes_activations_and_temporary_memory() -> None:
    by_category = {"weight": 10 * GIB, "optimizer_state": 10 * GIB, "activation": 4 * GIB, "temporary": GIB}
    change = compiled_change(by_category)
    worst = max(abs(error) for error in compiled_errors().values())
    assert change == CompiledChange(int(5 * GIB * worst), int(5 * GIB * worst))
    assert change == compiled_change({"activation": 5 * GIB})
    assert compiled_change({"weight": GIB}) == NO_CHANGE


def test_estimates_of_compiled_trainings_are_near_those_of_a_gpu() -> None:
    """All but bert: the transformers that was measured makes a mask for compiled code, which this one does not."""
    errors = dict(compiled_errors())
    assert {"gpt2", "resnet50", "vit", "llama", "moe"} <= set(errors)
    assert abs(errors.pop("bert")) < 0.34
    assert all(abs(error) < 0.06 for error in errors.values())


@pytest.mark.parametrize(("saving_bytes", "verdict"), [(0, TOO_LARGE), (1 * GIB, TOO_LARGE), (8 * GIB, EDGE)])
def test_a_compiled_program_may_fit_where_it_does_not_uncompiled(saving_bytes: int, verdict: str) -> None:
    card = find_card("t4")
    size_bytes = card.usable_bytes + 4 * GIB
    requests = requests_of(size_bytes)
    peaks = peaks_on(card, size_bytes, size_bytes, 0.95, FOLLOWED, compiled=CompiledChange(saving_bytes))
    assert peaks.least_bytes == peaks.process_bytes - saving_bytes
    assert fit_card(card, peaks, requests, 0.95).verdict == verdict


@pytest.mark.parametrize(("more_bytes", "verdict"), [(0, EDGE), (1, TOO_LARGE)])
def test_what_compiling_saves_may_be_just_enough(more_bytes: int, verdict: str) -> None:
    card = find_card("t4")
    size_bytes = card.usable_bytes + GIB
    saving_bytes = size_bytes + card.outside_bytes - card.usable_bytes - more_bytes
    peaks = peaks_on(card, size_bytes, size_bytes, 0.95, FOLLOWED, compiled=CompiledChange(saving_bytes))
    found = fit_card(card, peaks, requests_of(size_bytes), 0.95)
    assert (found.verdict, found.free_bytes) == (verdict, card.usable_bytes - peaks.process_bytes)
    assert not found.approximate


@pytest.mark.parametrize(("growth_bytes", "verdict"), [(0, FITS), (1 * GIB, FITS), (4 * GIB, EDGE)])
def test_a_compiled_program_that_may_need_more_than_the_gpu_has_is_on_the_edge(growth_bytes: int, verdict: str) -> None:
    card = find_card("t4")
    size_bytes = card.usable_bytes - 3 * GIB
    plain = peaks_on(card, size_bytes, size_bytes, 0.95, FOLLOWED)
    peaks = peaks_on(card, size_bytes, size_bytes, 0.95, FOLLOWED, compiled=CompiledChange(growth_bytes=growth_bytes))
    assert peaks.upper_bytes == plain.upper_bytes + growth_bytes
    assert fit_card(card, peaks, requests_of(size_bytes), 0.95).verdict == verdict


def test_the_error_of_each_category_is_a_share_of_the_peak() -> None:
    spread = category_spread()
    assert {"weight", "gradient", "activation"} <= set(spread) <= {*CATEGORIES, "rounding"}
    assert all(0 <= share < 1 for share in spread.values())


def test_a_peak_of_which_nothing_may_be_saved_has_no_lower_one() -> None:
    assert Peaks(1, 2, 3, 4).lower_bytes == 3
    assert Peaks(1, 2, 3, 4, compiled=CompiledChange(1)).lower_bytes == 2


@pytest.mark.parametrize("nccl_bytes", [None, 0, GIB])
def test_a_process_needs_what_is_reserved_and_what_is_outside_the_allocator(nccl_bytes: int | None) -> None:
    requests = requests_of(GIB)
    _, reserved_bytes = requests.peak_bytes
    peaks = Peaks(GIB, reserved_bytes, 0, 0)
    if nccl_bytes is None:
        found = fit_catalogue(peaks, requests, 0.95)
    else:
        found = fit_catalogue(peaks, requests, 0.95, nccl_bytes=nccl_bytes)
    assert {fit.card.key: fit.process_bytes for fit in found} == {
        card.key: reserved_bytes + card.with_handles(HANDLES).outside_bytes + (nccl_bytes or 0)
        for card in catalogue().values()
    }


def test_a_gpu_is_approximate_if_the_program_may_run_other_operators_there() -> None:
    cards = (find_card("h200"), find_card("t4"))
    traits = [[card.multiprocessors, *card.compute_capability] for card in cards]
    part = Part(facts={"elsewhere": {"traits": traits, "sizes": [], "changes": [], "approximate": [False, True]}})
    requests = Requests(journal_of([part]), AllocatorSettings())
    assert [requests.is_approximate(card) for card in cards] == [False, True]


def test_requests_that_are_others_on_a_gpu_are_replayed_there_and_all_else_stays() -> None:
    """The second of two requests has 1 MiB on an H200 and 2 GiB on a T4; no other GPU is known."""
    cards = (find_card("h200"), find_card("t4"))
    traits = [[card.multiprocessors, *card.compute_capability] for card in cards]
    elsewhere = {"sizes": [[MIB, 2 * GIB]], "changes": [[2, REPLACE, -1, 0, -1, -1]], "approximate": [False, True]}
    requests = requests_of(8 * MIB, MIB, elsewhere={**elsewhere, "traits": traits})
    here, there = (requests.on(card) for card in cards)
    assert (here is requests, there is requests, requests.on(cards[1]) is there) == (True, False, True)
    assert requests.on(find_card("a100-80gb")) is requests
    assert (here.peak_bytes, there.peak_bytes) == ((8 * MIB, 22 * MIB), (2 * GIB, 2 * GIB + 20 * MIB))
    peaks = peaks_on(cards[0], 1, 30 * MIB, 0.95)
    found = {fit.card.key: fit for fit in fit_catalogue(peaks, requests, 0.95)}
    assert list(found) == sorted(found, key=lambda key: -found[key].card.total_bytes)
    outside = {key: fit.process_bytes - fit.card.outside_bytes for key, fit in found.items()}
    assert {key: size for key, size in outside.items() if size != 30 * MIB} == {"t4": 2 * GIB + 20 * MIB}
    assert [key for key, fit in found.items() if fit.approximate] == ["t4"]


def test_requests_are_replayed_with_their_own_settings_or_others() -> None:
    own = AllocatorSettings(max_split_bytes=64 * MIB)
    requests = Requests(journal_of([Part()]), own)
    other = AllocatorSettings(expandable=True)
    found = [present(one).settings for one in (requests.replay(), requests.replay(other))]
    assert found == [own, other]


def test_a_free_of_a_block_from_before_the_program_changes_nothing() -> None:
    requests = requests_of(MIB, first=Action.FREE_REQUESTED)
    assert requests.peak_bytes == (0, 0)


@pytest.mark.parametrize(("sizes", "ordered"), [((5, 3), (3, 5)), ((3, 5), (3, 5)), ((None, 3), (None, 3))])
def test_the_bounds_of_assumed_values_are_in_order(sizes: tuple[int | None, int], ordered: tuple[int, int]) -> None:
    """Gaps between blocks can be larger with smaller values."""
    assert assumed_between(*sizes) == Assumed(*ordered)


@pytest.mark.parametrize(
    ("kinds", "expected", "others"),
    [
        ([MASKS], "half of each mask", "the least to all of each mask"),
        (
            [LOOPS, MASKS],
            "half of each mask and 10 iterations of loops that these values end",
            "the least to all of each mask and 1 to 100 iterations",
        ),
        ([INDICES], "nearly uniform indices (topk, sort, argmax or multinomial)", "equal indices"),
    ],
)
def test_only_what_was_assumed_is_named(kinds: list[str], expected: str, others: str) -> None:
    assert describe_assumed(kinds) == (expected, others)


@pytest.mark.parametrize(
    ("assumed", "full"),
    [(None, Assumed(5, 8)), (Assumed(1, 2), Assumed(1, 5)), (Assumed(None, None), Assumed(None, 8))],
)
def test_buffers_that_fill_raise_the_largest_bound(assumed: Assumed | None, full: Assumed) -> None:
    outcome = {"still_to_come_bytes": 3, "peak_reserved_bytes": 5}
    assert with_full_buffers(assumed, outcome) == full
    assert with_full_buffers(assumed, outcome | {"still_to_come_bytes": 0}) is assumed
    assert with_full_buffers(assumed, outcome, later_bytes=2) == full
    assert with_full_buffers(assumed, outcome | {"still_to_come_bytes": 2}, later_bytes=3) == full


@pytest.mark.parametrize(
    ("steps", "peaks", "grown"),
    [([0, 1, 2, 3, 4, 5, 5], [0, 1, 4, 4, 4, 6, 6], 2), ([0, 1, 2, 2], [0, 1, 9, 9], 0), ([], [], 0)],
)
def test_growth_counts_from_the_end_of_the_third_step(steps: list[int], peaks: list[int], grown: int) -> None:
    assert grown_after(steps, peaks) == grown


def test_later_steps_may_need_the_largest_error_of_programs_that_grew() -> None:
    errors = later_growth_errors()
    assert min(errors.values()) >= 0
    assert later_steps_bytes(1 << 30) == int((1 << 30) * max(errors.values())) > 1 << 30
    assert later_steps_bytes(0) == 0


@pytest.mark.parametrize(
    ("assumed", "expected"),
    [
        (None, None),
        (Assumed(None, None), Assumed(None, None)),
        (Assumed(3 * GIB, None), Assumed(2 * GIB, None)),
        (Assumed(GIB // 2, 5 * GIB), Assumed(0, 4 * GIB)),
    ],
)
def test_assumed_values_change_reserved_bytes_by_as_much_on_another_gpu(
    assumed: Assumed | None, expected: Assumed | None
) -> None:
    """Where the program reserves 2 GiB and not 3: never less than nothing, and what is unknown stays unknown."""
    peaks = Peaks(3 * GIB, 3 * GIB, 4 * GIB, 5 * GIB, FOLLOWED, assumed)
    found = peaks_of(requests_of(2 * GIB), peaks)
    assert found == replace(peaks, allocated_bytes=2 * GIB, reserved_bytes=2 * GIB, assumed=expected)
