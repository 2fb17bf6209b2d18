"""What was measured of estimates, and the errors that their intervals are made of."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from gpuledger.simulate.interval import lower_factor, upper_factor
from pages.blocks import FILES, ROOT, block
from pages.results import GIB, Results, about, environment_of, middle, percent, read, table, when, worst, wrap

RESULTS = "estimate/results/h200/"
IN_SIGHT = RESULTS + "estimate.json"
HELD_OUT = RESULTS + "estimate_held_out.json"
BLIND = (RESULTS + "estimate_held_out_first.json", RESULTS + "estimate_new.json")
"""Estimates as they were when the GPU's figures became known; the first twelve were estimated anew later."""
STREAMS = RESULTS + "allocator_streams.json"
COPIES = RESULTS + "conv_copies.json"
SHAPES = ROOT / "src" / "gpuledger" / "simulate" / "convolutions" / "measured.npz"
SPEED = "estimate/results/cpu/estimate_speed.json"
EAGER = RESULTS + "eager_peaks.json"
COMPILED = RESULTS + "compiled_peaks.json"
WITHOUT_WORKSPACES = "without workspaces"
"""How the memory of the other GPUs is estimated, and by which verdicts are counted."""
STRANGERS = "estimate/results/cpu/strangers.json"
MANY = "estimate/results/cpu/many_models.json"
TALLIES, TALLIES_BEFORE, BLIND_TALLIES, LATER_TALLIES, BLIND_FIFTH, LATER_FIFTH, TALLIES_AGAIN = (
    f"estimate/results/cpu/cpu_tally{name}.json"
    for name in ("", "_before", "_blind", "_fourth", "_blind_fifth", "_fifth", "_again")
)
HOST = ("input", "other")
"""Categories that have data of the host on the CPU, where a copy to the device is none."""
TALLY_SETS = {"first/": "first", "second/": "second", "third/": "third"}
NEAR = 0.03
PROGRAMS = RESULTS + "blind_programs.json"
SAME_VERSIONS = RESULTS + "compiled_peaks_versions.json"
"""Estimates with the version of transformers that was measured."""
ERRORS = ROOT / "src" / "gpuledger" / "simulate" / "estimate" / "errors.toml"
FIGURES = (("peak_allocated_bytes", "allocated"), ("peak_reserved_bytes", "reserved"), ("process_bytes", "process"))
KINDS = ("followed", "guessed")
SHARE_OF_TRAININGS = LEVEL = 0.95


def held(results: Results) -> Results:
    """Return the combinations that have a truth and an estimate."""
    return {name: one for name, one in results["combinations"].items() if one["error"]}


def all_of(*sets: Results) -> Results:
    """Return all sets of trainings as one; versions and GPUs are the first one's."""
    return {**sets[0], "combinations": {name: one for some in sets for name, one in some["combinations"].items()}}


def fitted() -> Results:
    """Return the trainings that the interval is made of."""
    return all_of(read(IN_SIGHT), read(HELD_OUT), read(BLIND[1]))


def errors_of(results: Results, key: str) -> list[float]:
    """Return the errors of one figure."""
    return [one["error"][key] for one in held(results).values() if key in one["error"]]


def blind_errors(key: str) -> list[float]:
    """Return the errors of all trainings that were estimated before they ran."""
    return [value for name in BLIND for value in errors_of(read(name), key)]


def blind_verdicts() -> dict[str, bool]:
    """Return training -> whether it was above its stated upper bound, of those that were estimated before they ran."""
    return {
        name: one["truth"]["process_bytes"] > one["estimate"]["upper_bytes"]
        for some in BLIND
        for name, one in held(read(some)).items()
    }


def blind_above() -> tuple[int, int]:
    """Return how many of the blind trainings were above their stated upper bound, and how many there are."""
    verdicts = blind_verdicts()
    return sum(verdicts.values()), len(verdicts)


def ratios_of(results: Results, kind: str) -> dict[str, float]:
    """Return truth over estimate of a process's bytes, for each training of a kind."""
    return {
        name: one["truth"]["process_bytes"] / one["estimate"]["process_bytes"]
        for name, one in sorted(held(results).items())
        if one["estimate"]["kind"] == kind
    }


def program_ratios(kind: str) -> dict[str, float]:
    """Return truth over estimate of a process's bytes, for each program of a kind that counts for the interval.

    Compiled and captured code have an interval of their own. Programs with a note that the estimate leaves something
    out do not count, such as a limit of memory. Context and libraries are those of the estimate.
    """
    return {
        name: one["process_bytes"] / one["estimate"]["peak_process_bytes"]
        for name, one in programs().items()
        if one["kind"] == kind and not one["own_interval"]
    }


def later_growth() -> Results:
    """Return program -> error over the growth of reserved memory, of those whose later steps were not all simulated.

    Those that an estimate leaves something else out of do not count.
    """
    return {
        name: max(one["truth"]["peak_reserved_bytes"] - one["estimate"]["peak_reserved_bytes"], 0) / one["grown_bytes"]
        for name, one in programs().items()
        if one.get("grown_bytes")
    }


def programs() -> Results:
    """Return the programs that were estimated before they ran, with the measured bytes of the process."""
    found = read(PROGRAMS)["programs"]
    for one in found.values():
        outside_bytes = one["estimate"]["peak_process_bytes"] - one["estimate"]["peak_reserved_bytes"]
        one["process_bytes"] = one["truth"]["peak_reserved_bytes"] + outside_bytes
    return dict(sorted(found.items()))


def category_shares(results: Results) -> dict[str, float]:
    """Return each category's error that only one training in twenty passes, as a share of the allocated peak."""
    sizes: dict[str, list[float]] = defaultdict(list)
    count = len(held(results))
    for one in held(results).values():
        for name, share in one["error"]["by_category"].items():
            sizes[name].append(abs(share))
    place = int(SHARE_OF_TRAININGS * count)
    return {name: sorted([0.0] * (count - len(found)) + found)[place] for name, found in sorted(sizes.items())}


def errors_toml() -> str:
    """Return truth over estimate by kind of program, and what categories were off by."""
    results = fitted()
    card = results["truth_on"]
    lines = [
        "# Truth over estimate of a process's bytes on the GPU, for each training our estimates were held against, by",
        "# kind: those whose workspaces all follow a rule, and those with layers of cuDNN, whose algorithm is guessed.",
        f"# Truth: one {card['card']}, torch {card['versions']['torch']}; both in bench/estimate/results/h200.",
        "# Made by tools/make_pages.py.",
    ]
    for kind in KINDS:
        lines += ["", f"[{kind}]"]
        lines += [f"{name} = {ratio:.5f}" for name, ratio in ratios_of(results, kind).items()]
    for kind in KINDS:
        lines += ["", "# Programs that were estimated before they ran.", f"[{kind}_programs]"]
        lines += [f"{name} = {ratio:.5f}" for name, ratio in program_ratios(kind).items()]
    lines += [
        "",
        "# Error of reserved bytes over their growth after the third simulated step, of programs whose steps differ",
        "# and were not all simulated. They were estimated before they ran.",
        "[later_growth]",
    ]
    lines += [f"{name} = {ratio:.5f}" for name, ratio in later_growth().items()]
    lines += [
        "",
        "# Share of the allocated peak that a category was off by in at most one of twenty trainings.",
        "[by_category]",
    ]
    lines += [f"{name} = {share:.5f}" for name, share in category_shares(results).items()]
    return "\n".join(lines) + "\n"


FILES[ERRORS] = errors_toml


@block("errors of estimates")
def errors_of_estimates() -> list[str]:
    """Return the errors, a row for each set of trainings and figure, and what the interval is made of."""
    blind = all_of(*map(read, BLIND))
    sets = {"estimated before they ran": blind, "in sight of the rules": read(IN_SIGHT)}
    rows = [
        [title, word, str(len(found)), percent(middle(found), 2), percent(worst(found), 2)]
        for title, results in sets.items()
        for key, word in FIGURES
        for found in [errors_of(results, key)]
    ]
    above, count = blind_above()
    return [
        *wrap(
            f"Measured: {about(read(IN_SIGHT), 'estimate/estimate_grid.py')}, and later for the blind ones. Estimated",
            f"without a GPU: torch {environment_of({'environment': blind['estimated_on']})['versions']['torch']}.",
        ),
        "",
        *table(["trainings", "bytes", "n", "median", "worst"], rows, 2),
        "",
        *wrap(
            f"Of the {count} trainings that were estimated before they ran, {above} ({percent(above / count, 0)}) were",
            "above the upper bound that was printed for them. They were chosen in two sets of twelve. After the first",
            "set, convolutions were measured because of its errors.",
        ),
        "",
        "The six largest errors of reserved memory among them:",
        "",
        *largest_errors(blind),
        "",
        *interval(),
    ]


def largest_errors(results: Results) -> list[str]:
    """Return the table of the trainings that were farthest off."""
    found = {name: one["error"] for name, one in held(results).items()}
    names = sorted(found, key=lambda name: -abs(found[name]["peak_reserved_bytes"]))[:6]
    rows = [[name, *(f"{found[name][key]:+.2%}".replace("%", " %") for key, _ in FIGURES)] for name in names]
    return table(["training", *(word for _, word in FIGURES)], rows)


def interval() -> list[str]:
    """Return what the interval of today is made of."""
    every, summary = fitted(), read(BLIND[1])["summary_of_all"]
    ratios = {kind: ratios_of(every, kind) for kind in KINDS}
    upper = {kind: percent(upper_factor(LEVEL, kind) - 1) for kind in KINDS}
    lower = {kind: percent(1 - 1 / lower_factor(LEVEL, kind)) for kind in KINDS}
    excess = {kind: percent(max(max(found.values()) - 1, 0.0)) for kind, found in ratios.items()}
    left_out = summary["above_upper_left_out"]
    named = f" ({', '.join(left_out)})" if left_out else ""
    return wrap(
        f"Today's interval is made of the errors of {len(held(every))} trainings: all of these, the first twelve as",
        "they were estimated after convolutions had been measured. Programs that were estimated before they ran",
        "can make it wider. The confidence level is 95 %. If all workspaces follow a rule, the upper bound is",
        f"{upper['followed']} above the estimate. The lower bound is {lower['followed']} below it. With cuDNN's",
        f"convolutions, of which the algorithms are predicted, these are {upper['guessed']} and",
        f"{lower['guessed']}. The largest errors above the estimate in these two groups were",
        f"{excess['followed']} and {excess['guessed']}. If each training is left out in turn,",
        f"{percent(summary['above_upper_left_out_frac'])} of the trainings are above their upper bound{named}; that is",
        "not an independent test.",
    )


@block("allocator and speed of estimates")
def allocator_and_speed() -> list[str]:
    """Return whether the simulated allocator answers as the GPU's, and how long an estimate takes."""
    streams, speed = read(STREAMS), read(SPEED)
    times = [
        f"{one['cpu_s']} s for {one['steps']} step{'s' if one['steps'] > 1 else ''} of {name}"
        for name, one in speed["programs"].items()
    ]
    ways, searches = speed["ways"], speed["searches"].values()
    every = ways["all GPUs"]["cpu_s"] / ways["one"]["cpu_s"]
    ratios = [one["ratio"] for one in searches]
    tried = [one["search"]["values_tried"] for one in searches]
    most_gib = max(one["most_bytes"] for one in speed["programs"].values()) / GIB
    return [
        *wrap(
            f"The allocator was given the {streams['requests']:,} requests of {len(streams['streams'])} recorded",
            f"trainings. Its reserved bytes differed from the GPU's after {streams['differing']} of them.",
            f"Measured: {about(streams, 'estimate/allocator_streams.py')}.",
        ),
        "",
        *wrap(
            f"An estimate takes {' and '.join(times)}, as CPU time. It needs up to {most_gib:.1f} GiB of memory. With",
            f"`--gpu all`, that of gpt2-small takes {every:.1f} times as long. For {len(ratios)} programs,",
            f"`--find-batch` takes {min(ratios):.1f} to {max(ratios):.1f} times as long as one estimate and tries",
            f"{min(tried)} to {max(tried)} values. Measured once each:",
            f"{about(speed, 'estimate/estimate_speed.py')}.",
        ),
    ]


@block("measured convolutions")
def measured_convolutions() -> list[str]:
    """Return how many convolutions estimates rest on, and in how many the copies that they assume agree."""
    copies = read(COPIES)
    with np.load(SHAPES) as kept:
        shapes = len(kept["digests"])
    files = copies["files"].values()
    count, agree = sum(one["convolutions"] for one in files), sum(one["copies_agree"] for one in files)
    told, last = copies["measured_on"]["conv_workspaces"], max(one["date"] for one in copies["measured_on"].values())
    return wrap(
        f"The table has {shapes:,} shapes of the {count:,} convolutions that were measured. The model is fitted to",
        "these, except those of trainings by which estimates are judged. The copies and sums of PyTorch itself are",
        "computed.",
        f"They agree with the GPU's in size and order in {agree:,} of the measured convolutions.",
        f"Measured: {about(told, 'estimate/conv_workspaces.py')}, and others until {last[:10]}. A",
        "third of the rows of 2026-11-29, 05:00 UTC, was lost before it could be used. Compared:",
        f"{when(copies, 'estimate/conv_copies.py')}.",
    )


@block("estimates of strangers")
def estimates_of_strangers() -> list[str]:
    """Return the errors on trainings that others measured on other GPUs."""
    results = read(STRANGERS)
    sets = {
        "all": results["errors"]["all"],
        "images": results["errors"]["images"],
        "texts": results["errors"]["texts"],
        "on a GPU without its measurements": results["without_each_gpu"],
        "of a model without its measurements": results["without_each_model"],
    }
    rows = [
        [name, str(one["rows"]), *(percent(one[key]) for key in ("median", "p90", "most"))]
        for name, one in sets.items()
    ]
    count, finished = results["verdicts"], results["errors"]["all"]["rows"]
    verdicts = Counter(
        (row["oom"], row["estimates"][WITHOUT_WORKSPACES]["verdict"])
        for row in results["rows"]
        if WITHOUT_WORKSPACES in row["estimates"]
    )
    failed = sum(row["oom"] for row in results["rows"])
    return [
        *wrap(
            f"Of the {finished} trainings that finished, the verdict is `fits` for {verdicts[False, 'fits']}, `on the",
            f"edge` for {verdicts[False, 'on the edge']} and `does not fit` for {verdicts[False, 'does not fit']}. Of",
            f"the {failed} that ran out of memory, it is `does not fit` for {verdicts[True, 'does not fit']}. So",
            f"{len(results['wrong_verdicts'])} of {count} verdicts are wrong if `on the edge` counts as right, and",
            f"{verdicts[False, 'on the edge'] + verdicts[True, 'on the edge']} do not decide.",
            f"For the {finished} trainings that finished, these are the errors of reserved memory and",
            "libraries. The first three rows used measurements of the same trainings to choose the memory of",
            f"libraries; the last two rows did not. Estimated: {about(results, 'estimate/strangers.py')}.",
        ),
        "",
        *table(["trainings", "n", "median", "90th percentile", "worst"], rows),
    ]


@block("programs with an estimate")
def programs_with_an_estimate() -> list[str]:
    """Return the share of widely used models that have an estimate, and why the others have none."""
    results = read(MANY)
    count, answered = results["programs"], results["answered"]
    failed = {name: one["why"].partition(". ")[0] for name, one in results["found"].items() if not one["answer"]}
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, why in failed.items():
        reasons[why].append(name.partition(":")[2])
    return [
        *wrap(
            f"Of {count} short trainings of widely used models, {answered} ({percent(answered / count, 1)}) have an",
            "estimate. They are of torchvision, timm, transformers, diffusers, torch-geometric, PEFT and Lightning, or",
            f"written for this comparison. Estimated: {about(results, 'estimate/many_models.py')}.",
        ),
        "",
        *table(["without an estimate", "error"], [[", ".join(names), f"`{why}`"] for why, names in reasons.items()]),
    ]


@block("estimates and tallies on the CPU")
def estimates_and_tallies() -> list[str]:
    """Return how far estimates are from the tensors of the same programs on the CPU, and which are further off."""
    results, before, again = map(read, (TALLIES, TALLIES_BEFORE, TALLIES_AGAIN))
    fourth, fourth_later, fifth, fifth_later = map(read, (BLIND_TALLIES, LATER_TALLIES, BLIND_FIFTH, LATER_FIFTH))
    rows, far = [], []
    for key, label in TALLY_SETS.items():
        found = {name: one for name, one in results["found"].items() if name.startswith(key)}
        rows.append([label, *_within(found)])
        if key == "second/":
            rows.insert(-1, [f"{label}, earlier", *_within({name: before["found"][name] for name in found})])
        far += _far(found, label)
    for label, one_set in (
        ("fourth, before it ran", fourth),
        ("fourth", fourth_later),
        ("fifth, before it ran", fifth),
        ("fifth", fifth_later),
        ("some again", again),
    ):
        rows.append([label, *_within(one_set["found"])])
        far += _far(one_set["found"], label)
    return [
        *wrap(
            "Compared is the peak of requested bytes, without workspaces. Both sides use plain attention and foreach",
            f"optimizers. Estimated: {about(results, 'estimate/cpu_tally.py')};",
            f"the second set earlier: {when(before)}. The first three sets ran",
            f"on the CPU: {when(tally_of(results))}.",
            f"{_blind_set('fourth', fourth, fourth_later)} {_blind_set('fifth', fifth, fifth_later)}",
            f"{len(again['found'])} programs were compared again after the tally had been given a GPU's attention with",
            f"dropout, RMSNorm and GRU cell: {when(tally_of(again))}.",
        ),
        "",
        *table(["programs", "n", "no estimate", "at most 0.1 % off", f"at most {percent(NEAR)} off", "worst"], rows),
        "",
        f"These are more than {percent(NEAR)} off:",
        "",
        *table(["program", "set", "estimate", "without input data"], far),
    ]


def _blind_set(name: str, blind: Results, later: Results) -> str:
    """Return when a set was estimated before it ran, and when again."""
    commit = blind["environment"]["commit"].partition("+")[0][:7]
    return (
        f"The {name} set was estimated on {blind['environment']['date']} with commit {commit}, and ran later. After "
        f"these errors were seen, it was estimated again: {when(later)}."
    )


def tally_of(results: Results) -> Results:
    """Return where and when the programs of a file ran on the CPU."""
    return {"environment": results.get("environment_of_tally", results["environment"])}


def _far(found: Results, label: str) -> list[list[str]]:
    """Return the programs that are not near, with their error, and that of the categories without data of the host."""
    rows = []
    for name, one in found.items():
        if "difference_frac" not in one:
            rows.append([f"`{name.partition('/')[2]}`", label, "none", ""])
        elif abs(one["difference_frac"]) > NEAR:
            cpu, estimate = (
                sum(size for category, size in one[side]["categories"].items() if category not in HOST)
                for side in ("cpu", "estimate")
            )
            errors = [f"{error:+.1%}".replace("%", " %") for error in (one["difference_frac"], estimate / cpu - 1)]
            rows.append([f"`{name.partition('/')[2]}`", label, *errors])
    return rows


def _within(found: Results) -> list[str]:
    sizes = [abs(one["difference_frac"]) for one in found.values() if "difference_frac" in one]
    counts = [len(found) - len(sizes), *(sum(size <= limit for size in sizes) for limit in (0.001, NEAR))]
    return [str(len(found)), *map(str, counts), percent(worst(sizes))]


@block("estimates of compiled trainings")
def estimates_of_compiled_trainings() -> list[str]:
    """Return the errors of estimates of compiled trainings, and those of estimates that ignore the compiling."""
    results, eager = read(COMPILED), read(EAGER)["trainings"]
    trainings = results["trainings"]
    errors, ignoring = [], []
    rows = []
    for name, one in trainings.items():
        errors.append(one["error_frac"])
        ignoring.append(eager[name]["estimated_bytes"] / one["measured_bytes"] - 1)
        shown = [f"{error:+.1%}".replace("%", " %") for error in (errors[-1], ignoring[-1])]
        rows.append([name, f"{one['measured_bytes'] / GIB:.2f} GiB", *shown])
    same = read(SAME_VERSIONS)
    again = ", ".join(
        f"{one['error_frac']:+.1%} ({name})".replace("%", " %") for name, one in same["trainings"].items()
    )
    measured, estimated = (one["versions"]["transformers"] for one in (same["measured_on"], results["estimated_on"]))
    return [
        *wrap(
            "Trainings that were compiled in the default mode, estimated and compared with PyTorch's peak of allocated",
            f"bytes: {percent(middle(errors), 1)} (median) and {percent(worst(errors), 1)} (worst) off. The last",
            "column ignores the compiling. The rules were made with these trainings in sight.",
            f"Measured: {about({'environment': results['measured_on']}, 'time/compiled.py')}.",
            f"Estimated without a GPU: {about({'environment': results['estimated_on']}, 'estimate/eager_peaks.py')}.",
        ),
        "",
        *table(["training", "peak", "estimate", "of the eager program"], rows),
        "",
        *wrap(
            f"They were measured with transformers {measured} and estimated with {estimated}.",
            f"Estimated with {measured}: {again}. Commit {same['estimated_on']['commit'][:7]}.",
        ),
    ]


@block("estimates of eager trainings")
def estimates_of_eager_trainings() -> list[str]:
    """Return the errors of estimates of the trainings that were also measured compiled, without the compiling."""
    results = read(EAGER)
    trainings = results["trainings"]
    errors = [one["error_frac"] for one in trainings.values()]
    failed = "; ".join(f"{name}: {why}" for name, why in results["failed"].items())
    rows = [
        [name, f"{one['measured_bytes'] / GIB:.2f} GiB", f"{one['error_frac']:+.3%}".replace("%", " %")]
        for name, one in trainings.items()
    ]
    return [
        *wrap(
            "The same trainings, eager, estimated and compared with PyTorch's peak of allocated bytes:",
            f"{percent(middle(errors), 3)} (median) and {percent(worst(errors), 3)} (worst) off. `moe` is a mixture of",
            "experts in which every expert runs.",
            f"Measured: {about({'environment': results['measured_on']}, 'time/compiled.py')}.",
            f"Estimated without a GPU: {about({'environment': results['estimated_on']}, 'estimate/eager_peaks.py')}.",
            f"Without an estimate: {failed}." if failed else "",
        ),
        "",
        *table(["training", "peak", "estimate"], rows),
    ]
