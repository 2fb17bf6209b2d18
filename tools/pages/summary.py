"""README's table of accuracy: one line for each kind of figure."""

from __future__ import annotations

import statistics

from pages.blind import all_above, errors_of_set, sets_that_ran
from pages.blocks import block
from pages.energy import PASSES, repeats
from pages.estimates import BLIND, FIGURES, blind_errors
from pages.memory import BALANCE, RECORDED, is_same, peak_difference, unaccounted_fracs
from pages.operators import EAGER, PAIRS, WITH_HOST_TIME, errors_of, pairs_with_host_time
from pages.results import environment_of, middle, percent, read, table, worst, wrap

ACCURACY = "docs/operator-accuracy.md"
_FILES = (RECORDED, BALANCE, PASSES, *BLIND, *PAIRS.values(), *WITH_HOST_TIME.values())


@block("summary of accuracy")
def summary_of_accuracy() -> list[str]:
    """Return what was compared with the GPU: each row one set of programs, its truth, n, median and worst."""
    models = read(RECORDED)["models"]
    same = [name for name, model in models.items() if is_same(model)]
    off = [f"{name} {percent(peak_difference(model), 2)}" for name, model in models.items() if name not in same]
    shares, joules = unaccounted_fracs(), repeats("energy_repeats_within")
    rows = [
        [
            "recorded peak, allocated bytes",
            "runs without recording",
            str(len(models)),
            f"equal in {len(same)}",
            "",
            ", ".join(off) or "equal",
        ],
        ["unaccounted memory, share of the process", "NVML", *ends(shares, 2)],
        ["energy of a step, run again", "the first run", *ends(joules, 2)],
        *(
            [f"estimate of {word} bytes, before the run", "the H200", *ends(every_blind_error(key), 2)]
            for key, word in FIGURES
        ),
    ]
    for mode in PAIRS:
        sums = f"sum of [measured operators]({ACCURACY}), {mode}"
        with_host = [pair for path in WITH_HOST_TIME.values() for pair in pairs_with_host_time(path)]
        errors = [pair["time_frac"] - 1 for pair in with_host if pair["mode"] == mode]
        rows.append([sums, "the eager model, its CPU time measured", *ends(errors, 1)])
        errors = errors_of(mode, None, EAGER)
        rows.append([sums, "the eager model, its CPU time assumed from the calls", *ends(errors, 1)])
    told = environment_of(read(RECORDED))
    dates = [environment_of(read(name))["date"][:10] for name in (*_FILES, *sets_that_ran().values())]
    above, count = all_above()
    return [
        *wrap(
            f"{told['card']}, driver {told['driver']}, torch {told['versions']['torch']}, {min(dates)} to",
            f"{max(dates)}. No other GPU is included.",
        ),
        "",
        *table(["figure", "compared with", "n", "median", "mean", "worst"], rows, 2),
        "",
        f"Of the {count} trainings that were estimated before they ran, {above} were above their 95 % upper bound.",
    ]


def every_blind_error(key: str) -> list[float]:
    """Return the errors of every training that was estimated before it ran and in which the figure was measured."""
    figure = key.removeprefix("peak_")
    sets = () if figure == "process_bytes" else tuple(sets_that_ran().values())
    return blind_errors(key) + [error for name in sets for error in errors_of_set(name, figure)]


def ends(values: list[float], digits: int) -> list[str]:
    """Return count, median, mean and worst of errors."""
    found = (middle(values), statistics.fmean(map(abs, values)), worst(values))
    return [str(len(values)), *(percent(one, digits) for one in found)]
