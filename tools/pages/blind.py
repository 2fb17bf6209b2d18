"""Trainings that were estimated before they ran, as they were published, and how often their upper bounds held."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from gpuledger.simulate.catalogue import REFERENCE, find_card
from gpuledger.simulate.interval import excess_factor, grid_errors
from pages.blocks import block
from pages.estimates import KINDS as KINDS_OF
from pages.estimates import (
    LEVEL,
    PROGRAMS,
    RESULTS,
    blind_above,
    blind_verdicts,
    later_growth,
    program_ratios,
    programs,
)
from pages.rebased import commit_of
from pages.results import MIB, Results, about, errors_in_words, middle, percent, read, table, when, worst, wrap

LAYERS, NETS, MIXED, CONVOLUTIONS, VARIED = (
    RESULTS + f"blind{name}.json" for name in ("", "_nets", "_mixed", "_convolutions", "_varied")
)
"""The third to seventh set: each training with its first estimate and the time of it."""
SETS = {"third": LAYERS, "fourth": NETS, "fifth": MIXED, "sixth": CONVOLUTIONS, "seventh": VARIED}
"""A set is estimated and published before it runs. Pages leave it out until then."""
_RAN, _AGAIN = "truth_on", "again_on"
KINDS = "estimate/results/cpu/blind_kinds.json"
_LAYERS = {"recurrent": "recurrent", "convolutions": "convolutions, and none that are recurrent", "neither": "neither"}
_FIGURES = ("allocated_bytes", "reserved_bytes")
_EXACT_BYTES = 1024
_NEAR = 0.001
_ELSEWHERE = ("followed on another GPU", "guessed on another GPU")
_HALVINGS = 60


def interval_of_share(hits: int, count: int, level: float) -> tuple[float, float]:
    """Return the exact binomial interval (Clopper-Pearson) of the share that ``hits`` of ``count`` come from."""
    tail = (1 - level) / 2

    def at_most(hits: int, share: float) -> float:
        return sum(math.comb(count, one) * share**one * (1 - share) ** (count - one) for one in range(hits + 1))

    low = 0.0 if not hits else _crossing(lambda share: 1 - at_most(hits - 1, share) < tail)
    high = 1.0 if hits == count else _crossing(lambda share: at_most(hits, share) > tail)
    return low, high


def _crossing(is_below: Callable[[float], bool]) -> float:
    """Return the share from which on ``is_below`` is False."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


def is_above(one: Results) -> bool:
    """Return whether a training's process needed more than the upper bound that was stated for it.

    Only allocated and reserved bytes were measured. Context and libraries are those of the catalogue on both sides.
    """
    outside_bytes = find_card(REFERENCE).outside_bytes
    estimated_bytes = one["estimate"]["reserved_bytes"] + outside_bytes
    upper_bytes = estimated_bytes * one["estimate"]["upper_over_estimate"]
    return bool(one["truth"]["reserved_bytes"] + outside_bytes > upper_bytes)


def errors_of_set(name: str, figure: str) -> list[float]:
    """Return the errors of one figure in a set of trainings with layers of cuDNN."""
    return [one["error"][figure] for one in read(name)["trainings"].values()]


def sets_that_ran() -> dict[str, str]:
    """Return title -> file of the sets that ran on the GPU."""
    return {title: name for title, name in SETS.items() if _RAN in read(name)}


def all_above() -> tuple[int, int]:
    """Return how many trainings of all sets are above their stated upper bound, and how many there are."""
    above, count = blind_above()
    trainings = [one for name in sets_that_ran().values() for one in read(name)["trainings"].values()]
    return above + sum(map(is_above, trainings)), count + len(trainings)


def _rows(trainings: Results) -> list[str]:
    """Return the table of a set: both errors, and on which side of its upper bound each training is."""
    rows = [
        [
            name,
            *(f"{one['error'][figure]:+.2%}".replace("%", " %") for figure in _FIGURES),
            "above" if is_above(one) else "below",
        ]
        for name, one in trainings.items()
    ]
    return table(["training", "allocated", "reserved", "process, against the upper bound"], rows)


def _last_estimated(results: Results) -> str:
    """Return when the last estimate of a set was made."""
    return str(max(one["estimate"]["estimated"] for one in results["trainings"].values()))


@block("blind record of layers")
def blind_record() -> list[str]:
    """Return the sets of blind estimates after the first two, and the coverage of the upper bounds of all sets."""
    layers, nets, mixed = read(LAYERS), read(NETS), read(MIXED)
    return [
        *wrap(
            f"A third set of {len(layers['trainings'])} trainings has other layers of cuDNN than the first two. They",
            f"were chosen and estimated until {_last_estimated(layers)}, and ran later. These are the errors of the",
            "estimates as they were published. Context and libraries were not measured; they are those of the",
            "catalogue. Measured:",
            f"{about({'environment': layers['truth_on']}, 'estimate/blind.py')}.",
        ),
        "",
        *_rows(layers["trainings"]),
        "",
        *wrap(
            f"A fourth set of {len(nets['trainings'])} trainings was chosen after the rules for recurrent layers had",
            f"been made. It was estimated with {commit_of(nets['estimated_on']['commit'])} until",
            f"{_last_estimated(nets)}, and ran later. Measured:",
            f"{about({'environment': nets['truth_on']}, 'estimate/blind.py')}.",
        ),
        "",
        *_rows(nets["trainings"]),
        "",
        *misses(nets["trainings"]),
        "",
        *wrap(
            f"A fifth set of {len(mixed['trainings'])} trainings mixes recurrent layers and convolutions. It was",
            f"estimated with {commit_of(mixed['estimated_on']['commit'])} until {_last_estimated(mixed)}, and ran",
            "later. Measured:",
            f"{about({'environment': mixed['truth_on']}, 'estimate/blind.py')}.",
        ),
        "",
        *_rows(mixed["trainings"]),
        "",
        *later_set(
            CONVOLUTIONS,
            "A sixth set has convolutional nets for videos, volumes, images and sounds.",
            "It was chosen after rules for 3-D convolutions had been made.",
        ),
        *later_set(
            VARIED,
            "A seventh set has six convolutional nets of other kinds and six nets without convolutions.",
            "It was chosen before more convolutions were measured and fitted, and estimated after that.",
        ),
        *table(
            ["set", "bytes", "n", "median", "worst"],
            [_summary(title, name, figure) for title, name in sets_that_ran().items() for figure in _FIGURES],
            2,
        ),
        "",
        *coverage(),
        "",
        *coverage_by_kind(),
        "",
        *estimated_again(),
    ]


def later_set(name: str, *words: str) -> list[str]:
    """Return a set that was estimated and then ran, and nothing before it ran. ``words`` say what is in it."""
    results = read(name)
    if _RAN not in results:
        return []
    trainings, count = results["trainings"], len(results["trainings"])
    exact, below = count - len(not_exact(trainings)), count - sum(map(is_above, trainings.values()))
    return [
        *wrap(
            *words,
            f"Its {count} trainings were estimated with {commit_of(results['estimated_on']['commit'])} until",
            f"{_last_estimated(results)}, and ran later. Measured:",
            f"{about({'environment': results[_RAN]}, 'estimate/blind.py')}.",
        ),
        "",
        *_rows(trainings),
        "",
        *wrap(
            f"The allocated bytes of {exact} of the {count} are at most {_EXACT_BYTES // 1024} KiB off. {below} of the",
            f"{count} are below their upper bound.",
        ),
        "",
    ]


def estimated_again() -> list[str]:
    """Return how far off estimates are that were made after their sets had run."""
    again = {title: some for title, name in SETS.items() if _AGAIN in (some := read(name))}
    results = [*again.values()]
    commits = dict.fromkeys(commit_of(one[_AGAIN]["commit"]) for one in results)
    first, *_, last = again
    made = [training["again"] for one in results for training in one["trainings"].values()]
    rows = []
    for figure in _FIGURES:
        found = [one[figure] for one in made]
        within = sum(abs(error) <= _NEAR for error in found)
        words = [figure.removesuffix("_bytes"), str(len(found)), str(within)]
        rows.append([*words, percent(middle(found), 2), percent(worst(found), 2)])
    bounded = [
        not is_above({**one, "estimate": {**one["estimate"], "reserved_bytes": reserved_again(one)}})
        for some in results
        for one in some["trainings"].values()
    ]
    low, high = interval_of_share(sum(bounded), len(bounded), LEVEL)
    head = ["bytes, estimated again", "n", f"within {percent(_NEAR)}", "median", "worst"]
    return [
        *wrap(
            f"The {first} to {last} set were estimated again with {' and '.join(commits)}, by",
            "`bench/estimate/blind.py --again`.",
            "This is no blind record: rules were made with some of these trainings in sight.",
        ),
        "",
        *table(head, rows),
        "",
        *wrap(
            f"{sum(bounded)} of these {len(bounded)} trainings are below an upper bound that is as far above today's",
            "estimate as the stated one was above the first. The binomial interval of this share is",
            f"{percent(low, 0)} to {percent(high, 0)}.",
        ),
    ]


def reserved_again(one: Results) -> float:
    """Return the reserved bytes of the estimate that was made after a training had run."""
    return float(one["truth"]["reserved_bytes"] * (1 + one["again"]["reserved_bytes"]))


def _summary(title: str, name: str, figure: str) -> list[str]:
    """Return one line of the summary of a set."""
    found = errors_of_set(name, figure)
    return [title, figure.removesuffix("_bytes"), str(len(found)), percent(middle(found), 2), percent(worst(found), 2)]


def not_exact(trainings: Results) -> list[str]:
    """Return the trainings whose allocated bytes are more than 1 KiB off."""
    return [
        name
        for name, one in trainings.items()
        if abs(one["estimate"]["allocated_bytes"] - one["truth"]["allocated_bytes"]) > _EXACT_BYTES
    ]


def misses(trainings: Results) -> list[str]:
    """Return which trainings of the fourth set were not exact, and what the upper bounds say of them."""
    off = not_exact(trainings)
    count, outside_bytes = len(trainings), find_card(REFERENCE).outside_bytes
    small = [one for one in trainings.values() if one["truth"]["reserved_bytes"] < outside_bytes]
    below = count - sum(map(is_above, trainings.values()))
    return wrap(
        f"The allocated bytes of {count - len(off)} of the {count} are at most {_EXACT_BYTES // 1024} KiB off. The",
        f"other {len(off)} are {', '.join(off)}. {below} of the {count} are below their upper bound. The bound is of",
        f"the whole process. Context and libraries ({outside_bytes / MIB:,.0f} MiB) are more than half of",
        f"{len(small)} of the {count} processes, so the bound is wide for these small trainings.",
        "After these runs, rules were added for copies, zeros and dropout masks of recurrent layers. They were made",
        "with these trainings in sight. The estimates above are the first ones.",
    )


def coverage() -> list[str]:
    """Return how many blind trainings were below the upper bound stated for them."""
    above, count = all_above()
    below = count - above
    low, high = interval_of_share(below, count, LEVEL)
    where = "in" if low <= LEVEL <= high else "not in"
    first_above, first_count = blind_above()
    return wrap(
        f"All {count} trainings that were estimated before they ran have an upper bound with a confidence level of",
        f"{percent(LEVEL, 0)}. {below} of them ({percent(below / count, 0)}) were below it. The binomial interval of",
        f"this share is {percent(low, 0)} to {percent(high, 0)}, so {percent(LEVEL, 0)} is {where} it.",
        f"{first_above} of the {above} above their bound are among the {first_count} of the first two sets.",
        f"The bounds of later sets were made of more errors: of these {count - first_count} trainings,",
        f"{below - first_count + first_above} were below. Later estimates",
        "of these trainings are not blind, and are not included. By the layers of the model",
        f"({when(read(KINDS), 'estimate/blind_kinds.py')}):",
    )


def verdicts() -> dict[str, bool]:
    """Return training -> whether it was above its stated upper bound, of all sets."""
    ran = sets_that_ran().values()
    layers = {name: is_above(one) for some in ran for name, one in read(some)["trainings"].items()}
    return {**blind_verdicts(), **layers}


def coverage_by_kind() -> list[str]:
    """Return how many blind trainings of each kind of layers were below the upper bound stated for them."""
    kinds, found = read(KINDS)["kinds"], verdicts()
    assert kinds.keys() >= found.keys(), "the kinds of trainings that ran on the GPU are not listed"
    rows = []
    for kind, words in _LAYERS.items():
        above = [found[name] for name in found if kinds[name] == kind]
        below, count = above.count(False), len(above)
        low, high = interval_of_share(below, count, LEVEL)
        share = [percent(one, 0) for one in (below / count, low, high)]
        rows.append([words, str(count), str(below), share[0], f"{share[1]} to {share[2]}"])
    return table(["layers of the model", "n", "below", "share", "binomial interval"], rows)


def left_out_above(kind: str) -> tuple[int, int]:
    """Return how many trainings on other GPUs are above a bound made without their model, and how many there are."""
    errors = grid_errors(kind)
    models = {name: name.partition("-")[0] for name in errors}
    above = 0
    for name, ratio in errors.items():
        others = {other: one for other, one in errors.items() if models[other] != models[name]}
        above += ratio > excess_factor(others, LEVEL)
    return above, len(errors)


@block("coverage on other GPUs")
def coverage_on_other_gpus() -> list[str]:
    """Return how often the upper bounds for other GPUs hold, for a model that is left out."""
    counts = [left_out_above(kind) for kind in _ELSEWHERE]
    above, count = (sum(one) for one in zip(*counts, strict=True))
    low, high = interval_of_share(count - above, count, LEVEL)
    return wrap(
        f"The upper bounds are made of the errors of {count} trainings, at a confidence level of {percent(LEVEL, 0)}.",
        f"If a bound is made without a training's model, {count - above} of them",
        f"({percent((count - above) / count, 0)}) are below it. The",
        f"binomial interval of this share is {percent(low, 0)} to {percent(high, 0)}. The rules for other GPUs were",
        "chosen with these trainings in sight, so this is not a blind test.",
    )


@block("coverage on programs")
def coverage_on_programs() -> list[str]:
    """Return the errors of programs that were estimated before they ran, and how often their bounds hold."""
    found = programs()
    rows, held = [], Counter[str]()
    for name, one in found.items():
        estimate, true_bytes = one["estimate"], one["process_bytes"]
        others = {kind: {other: r for other, r in program_ratios(kind).items() if other != name} for kind in KINDS_OF}
        factor = lower_factor_of(one["kind"], others[one["kind"]])
        below, above = true_bytes < estimate["lower_bytes"] / factor, true_bytes > estimate["upper_bytes"]
        held["upper"] += not above
        held["lower"] += not below
        held["both"] += not above and not below
        errors = (
            estimate[f"peak_{key}"] / measured - 1
            for key, measured in (
                ("allocated_bytes", one["truth"]["peak_allocated_bytes"]),
                ("reserved_bytes", one["truth"]["peak_reserved_bytes"]),
                ("process_bytes", true_bytes),
            )
        )
        where = "above" if above else "below" if below else "inside"
        rows.append([name.replace("_", "-"), *(f"{error:+.2%}".replace("%", " %") for error in errors), where])
    count = len(found)
    sizes = {
        kind: [one["estimate"][f"peak_{kind}_bytes"] / one["truth"][f"peak_{kind}_bytes"] - 1 for one in found.values()]
        for kind in ("allocated", "reserved")
    }
    rest = {
        key: ", ".join(name.replace("_", "-") for name in read(PROGRAMS)[key]) for key in ("no_estimate", "no_truth")
    }
    shares = [interval_of_share(held[end], count, LEVEL) for end in ("upper", "lower", "both")]
    said = [
        f"{held[end]} of {count} ({percent(low, 0)} to {percent(high, 0)})"
        for end, (low, high) in zip(("upper", "lower", "both"), shares, strict=True)
    ]
    return [
        *wrap(
            f"{count} programs were written for this, and estimated before they ran, by the commits",
            f"{', '.join(sorted({one['commit'][:7] for one in found.values()}))}. The confidence level of each end",
            f"is 95 %. Below the upper bound are {said[0]}. Above the lower bound are {said[1]}.",
            f"Inside of both are {said[2]}.",
            *errors_in_words(sizes),
            "The ranges are binomial intervals.",
            "The upper bound is the one that was printed. The lower bound is today's, made without the program. The",
            "last column says where the measurement was. Context and libraries are those of the estimate. Captured",
            "CUDA graphs have a wider interval since then.",
            f"Without an estimate are {rest['no_estimate']}; those of a06-two-tower and c06-rlhf took more than 300 s.",
            f"Not in the table is {rest['no_truth']}, which ran out of the memory to which it limits itself.",
            "The estimates did not know of such a limit, nor that of",
            "t13-fno-retry, which tries a smaller batch then. A note of the estimate of t14-mae-phases says that its",
            "last phase was not simulated. t11-clip ran on two GPUs.",
            *_grown(found),
            "Measured: NVIDIA H200, torch 2.11.0,",
            f"{', '.join(sorted({one['measured'] for one in found.values()}))},",
            "`bench/estimate/blind_programs.py`.",
        ),
        "",
        *table(["program", "allocated", "reserved", "process", "interval"], rows),
    ]


def _grown(found: Results) -> list[str]:
    """Return sentences on programs whose memory grew, and whose later steps were not all simulated."""
    grown = {name: one for name, one in found.items() if one.get("grown_bytes")}
    above = [name for name, one in grown.items() if one["process_bytes"] > one["estimate"]["upper_bytes"]]
    return [
        f"The steps of {_named(grown)} need different amounts of memory. A note of their estimates says that",
        f"later steps can be larger. Above the bound are {_named(above)}. Since then, the upper bound of such a",
        f"program has {max(later_growth().values()):.1f} times the growth of its reserved memory after the third step.",
    ]


def _named(names: Iterable[str]) -> str:
    return ", ".join(name.replace("_", "-") for name in names)


def lower_factor_of(kind: str, programs_of_kind: dict[str, float]) -> float:
    """Return the factor from the lower bound to an estimate, made of the trainings and of these programs."""
    trainings = grid_errors(kind)
    sets = (trainings, trainings | programs_of_kind)
    return max(excess_factor({name: 1 / ratio for name, ratio in one.items()}, LEVEL) for one in sets)
