"""What was measured of sums and predictions of operators."""

from __future__ import annotations

import statistics
from typing import Any

from gpuledger.ops.totals.whole_interval import class_of_host, half_width_frac
from pages.blocks import block
from pages.results import about, environment_of, middle, percent, read, table, worst, wrap

RESULTS = "operators/results/h200/"
PAIRS = {"inference": RESULTS + "operator_pairs.json", "training": RESULTS + "operator_pairs_training.json"}
WITH_HOST_TIME = {"": RESULTS + "operator_pairs_host.json", "unseen models, ": RESULTS + "operator_pairs_unseen.json"}
"""Pairs with a CPU time that was measured on the model itself: those of the older tool and others, and unseen ones."""
UNSEEN_LATER = {"unseen models, on a later day, ": RESULTS + "operator_pairs_unseen_later.json"}
"""Trainings of the unseen models, with their energy; some of them were measured before."""
DAYS_LATER = RESULTS + "operator_pairs_later.json"
"""Some of the pairs measured again on another day, with their operators."""
IN_GRAPHS = "operators/results/cpu/graph_operators.json"
PREDICTED = RESULTS + "operator_predict.json"
PREDICTED_WHOLES = "operators/results/cpu/predict_wholes.json"
REPEATED = RESULTS + "operator_repeat_time.json"
CACHES = {"ResNet-50": RESULTS + "operator_cache_resnet50.json", "ViT-B/16": RESULTS + "operator_cache_vit.json"}
TRANSFORMERS = ("bert", "distilbert", "gpt2", "llama", "swin", "vit")
OLDER = {"ml-operator-profiling, A30": ("7.1 %", "7.0 %"), "ml-operator-profiling, RTX 2080 Ti": ("11.1 %", "5.6 %")}
"""Mean errors of time and energy, computed again from that project's published outputs."""
RULES_MADE_WITH = "regnet"
"""Its error led to the rule for convolutions with wide groups, so that its predictions are no longer blind."""
EAGER, GRAPH = "eager", "CUDA graph"
AGAINST = {EAGER: ("time_frac", "energy_frac"), GRAPH: ("busy_time_frac", "busy_energy_frac")}

WAYS = ((EAGER, EAGER, False), (GRAPH, GRAPH, False), (GRAPH, "CUDA graph, other operators", True))
"""What sums are compared with, its name on the page, and whether these are graphs of other operators."""

Pair = dict[str, Any]


def kind_of(pair: Pair) -> str:
    """Return which set of models a pair belongs to."""
    name = pair["workload"]
    if not name.startswith(TRANSFORMERS):
        return "CNNs, float32"
    return "transformers, bfloat16" if name.endswith("bfloat16") else "transformers, float32"


def changed_in_graphs() -> dict[str, Pair]:
    """Return the models that run other operators in a CUDA graph than eagerly, by the name of their workload."""
    return {pair["workload"]: pair for pair in read(IN_GRAPHS)["pairs"] if pair["changed_calls"]}


def errors_of(mode: str, kind: str | None, way: str, what: str = "time", *, is_changed: bool = False) -> list[float]:
    """Return by how much sums of operators are off whole models, as shares of the whole.

    Compared with CUDA graphs, these are the models that run the same operators in them, or with ``is_changed`` the
    others.
    """
    key = AGAINST[way][what == "energy"]
    pairs = [pair for pair in read(PAIRS[mode])["pairs"] if kind in (None, kind_of(pair))]
    if way == GRAPH:
        changed = changed_in_graphs()
        pairs = [pair for pair in pairs if (pair["workload"] in changed) == is_changed]
    return [pair[key] - 1 for pair in pairs if pair.get(key) is not None]


@block("sums of operators")
def sums_of_operators() -> list[str]:
    """Return how far sums are from whole models, by kind of model and by what they are compared with."""
    rows = []
    for mode in PAIRS:
        for kind in dict.fromkeys(kind_of(pair) for pair in read(PAIRS[mode])["pairs"]):
            for way, label, is_changed in WAYS:
                times, joules = (errors_of(mode, kind, way, what, is_changed=is_changed) for what in ("time", "energy"))
                if times:
                    rows.append([f"{mode}, {kind}", label, str(len(times)), *errors(times), *errors(joules)])
    head = ["models", "compared with", "n", "time: median", "mean", "worst", "energy: median", "mean", "worst"]
    source = about(read(PAIRS["inference"]), "operators/operator_pairs.py")
    return [*wrap(f"{source}."), "", *table(head, rows, 2)]


@block("sums with measured CPU time")
def sums_with_host_time() -> list[str]:
    """Return how far sums with a CPU time that was measured on the model itself are from eager models."""
    rows = []
    files = WITH_HOST_TIME | UNSEEN_LATER
    for label, path in files.items():
        groups: dict[str, list[Pair]] = {}
        for pair in pairs_with_host_time(path):
            groups.setdefault(f"{label}{pair['mode']}, {kind_of(pair)}", []).append(pair)
        for name, pairs in groups.items():
            times = [pair["time_frac"] - 1 for pair in pairs]
            joules = [pair["energy_frac"] - 1 for pair in pairs if pair["energy_frac"] and pair["energy_step_ns"]]
            count = str(len(joules)) if joules else "–"
            rows.append([name, str(len(pairs)), *errors(times), count, *(errors(joules) if joules else ["–"] * 3)])
    head = ["models", "n", "time: median", "mean", "worst", "n", "energy: median", "mean", "worst"]
    source = about(read(WITH_HOST_TIME[""]), "operators/operator_pairs.py")
    sessions = sorted({(date, commit[:7]) for path in files.values() for date, commit in read(path)["sessions"]})
    commits = ", ".join(dict.fromkeys(commit for _, commit in sessions))
    source += f". The models were measured from {sessions[0][0]} to {sessions[-1][0]}, at the commits {commits}"
    return [*wrap(f"{source}."), "", *table(head, rows), "", *wrap(faster_while_energy_was_measured())]


def pairs_with_host_time(path: str) -> list[Pair]:
    """Return the pairs of a file whose CPU time was measured on the model itself."""
    return [pair for pair in read(path)["pairs"] if pair["is_host_measured"]]


def faster_while_energy_was_measured() -> str:
    """Return how much faster the models' steps were during the energy measurement, because the host was."""
    pairs = [pair for path in WITH_HOST_TIME.values() for pair in read(path)["pairs"] if pair["energy_step_ns"]]
    fastest = max(pair["whole_ns"] / pair["energy_step_ns"] for pair in pairs)
    return (
        "Energies are compared at the step time of the energy measurement. The speed of a shared host changes: a model "
        f"that waits for the CPU was up to {fastest:.1f} times as fast then."
    )


@block("operators in graphs")
def operators_in_graphs() -> list[str]:
    """Return the models whose graphs run other operators, and the sums of these operators."""
    rows = []
    for name, pair in changed_in_graphs().items():
        sums = [pair[key]["busy_ns"] / pair["graph_ns"] - 1 for key in ("eager_operators", "graph_operators")]
        predicted = percent(1 - pair["graph_operators"]["measured_frac"])
        rows.append(
            [name.replace("_int64", ""), str(pair["calls"]), str(pair["changed_calls"]), *map(signed, sums), predicted]
        )
    head = [
        "model",
        "eager calls",
        "calls in one of both only",
        "eager operators",
        "operators of the graph",
        "of these predicted",
    ]
    return [*wrap(f"{about(read(IN_GRAPHS), 'operators/graph_operators.py')}."), "", *table(head, rows)]


def signed(error_frac: float) -> str:
    """Return an error with its sign."""
    return ("+" if error_frac > 0 else "") + percent(error_frac)


@block("coverage of sum intervals")
def coverage_of_intervals() -> list[str]:
    """Return how many whole models are inside the interval of their sum, made without models of their kind."""
    pairs = [pair for mode in PAIRS for pair in read(PAIRS[mode])["pairs"] if pair["host_ns"] is not None]
    words = []
    for what, whole, total in (("time", "whole_ns", "sum_ns"), ("energy", "whole_j", "sum_j")):
        rows = [(pair, pair[whole] / pair[total]) for pair in pairs if pair[whole] and pair[total]]
        inside = 0
        without = 0
        for pair, share in rows:
            half_frac = half_width_frac([one for other, one in rows if is_alike(pair, other)])
            without += half_frac is None
            inside += half_frac is not None and abs(share - 1) <= half_frac
        count = len(rows) - without
        words.append(f"{inside} of {count} ({percent(inside / count, 0)}) in {what}")
    return wrap(
        "The 90 % interval of a sum was checked with each model left out in turn, together with its other sizes and",
        f"data types: {' and '.join(words)} are inside. {without} models have too few others like them for an",
        f"interval. {about(read(PAIRS['inference']), 'operators/operator_pairs.py')}.",
    )


def is_alike(pair: Pair, other: Pair) -> bool:
    """Return whether another pair is in the same class, and of another architecture."""
    classes = {class_of_host(one["host_ns"] / max(one["busy_ns"], one["queued_ns"] or 0.0)) for one in (pair, other)}
    architectures = [one["workload"].partition("-")[0] for one in (pair, other)]
    return len(classes) == 1 and architectures[0] != architectures[1]


def errors(values: list[float]) -> list[str]:
    """Return median, mean and worst of errors."""
    return [percent(one) for one in (middle(values), statistics.fmean(map(abs, values)), worst(values))]


def with_host_time(kind: str) -> list[str]:
    """Return the mean errors of time and energy of inference, with a CPU time that was measured on the model itself."""
    pairs = [pair for pair in read(WITH_HOST_TIME[""])["pairs"] if pair["mode"] == "inference"]
    times = [pair["time_frac"] - 1 for pair in pairs if kind_of(pair) == kind]
    joules = [pair["energy_frac"] - 1 for pair in pairs if kind_of(pair) == kind and pair["energy_step_ns"]]
    time_text, energy_text = (percent(statistics.fmean(map(abs, one))) for one in (times, joules))
    return [time_text, f"{energy_text} ({len(joules)} pairs)"]


@block("sums beside the older tool's")
def sums_beside_the_older() -> list[str]:
    """Return our mean errors against eager models, in the form of the older tool's."""
    kind = "CNNs, float32"
    found = [errors_of("inference", kind, EAGER, what) for what in ("time", "energy")]
    ours = [percent(statistics.fmean(map(abs, one))) for one in found]
    count = len(found[0])
    rows = [[name, *figures] for name, figures in OLDER.items()]
    rows.append([f"gpuledger, H200, {count} pairs of CNNs", *ours])
    rows.append(["the same pairs, with the CPU time measured on the model", *with_host_time(kind)])
    return table(["sum of operators, eager inference", "time, mean error", "energy, mean error"], rows, 3)


@block("predictions of operators")
def predictions_of_operators() -> list[str]:
    """Return the errors of predicted operators, and what share of them is within the interval."""
    found = read(PREDICTED)["card"]
    rows = [
        [
            label,
            "its measurement",
            f"{part['count']:,}",
            percent(part["median_frac"]),
            percent(part["p90_frac"]),
            percent(part["worst_frac"], 0),
        ]
        for label, part in (("one operator", found["unseen"]), ("one larger than all measured", found["beyond"]))
    ]
    low = sorted((one for one in found["by_type"] if one["count"] >= 50), key=lambda one: one["inside_frac"])[:3]
    least = ", ".join(f"`{one['name']}` {percent(one['inside_frac'])} (n = {one['count']})" for one in low)
    return [
        *wrap(f"{about(read(PREDICTED), 'operators/operator_predict.py')}, of measurements on an {found['card']}."),
        "",
        *table(["prediction of time", "compared with", "n", "median", "90th percentile", "worst"], rows, 2),
        "",
        *wrap(
            f"The 90 % intervals contain {percent(found['unseen']['inside_frac'])} of the measurements. For some",
            f"operators they contain fewer: {least}.",
        ),
    ]


@block("predictions of whole models")
def predictions_of_whole_models() -> list[str]:
    """Return the errors of predicted models with nothing of their architecture in the fit."""
    found = read(PREDICTED_WHOLES)
    changed = changed_in_graphs()
    rows = []
    for mode in PAIRS:
        pairs = [pair for pair in found["pairs"] if pair["mode"] == mode]
        for kind in dict.fromkeys(kind_of(pair) for pair in pairs):
            errors_frac = [
                pair["predicted_ns"] / pair["graph_ns"] - 1
                for pair in pairs
                if kind_of(pair) == kind and pair["graph_ns"] and pair["workload"] not in changed
            ]
            if errors_frac:
                rows.append([f"{mode}, {kind}", GRAPH, str(len(errors_frac)), *errors(errors_frac)])
    rows += rows_of_unseen(found["unseen_pairs"])
    fitted = [pair["fitted_to"] for pair in found["pairs"]]
    return [
        *wrap(
            f"{about(found, 'operators/predict_wholes.py')}, of measurements on an {found['card']}. Fitted to",
            f"{min(fitted):,} to {max(fitted):,} measurements.",
        ),
        "",
        *table(["models", "compared with", "n", "median", "mean", "worst"], rows, 2),
    ]


def is_known(pair: Pair) -> bool:
    """Return whether a rule was made after a model that was unseen before had been predicted."""
    return str(pair["workload"]).startswith(RULES_MADE_WITH)


def name_of_unseen(pair: Pair) -> str:
    """Return the row of a model that was measured after the database was made."""
    return f"{'RegNet' if is_known(pair) else 'unseen models'}, {pair['mode']}, {kind_of(pair)}"


def rows_of_unseen(pairs: list[Pair]) -> list[list[str]]:
    """Return the errors of models that were measured after the database was made. Only the GPU's time is predicted."""
    groups: dict[str, list[float]] = {}
    for pair in sorted(pairs, key=is_known):
        groups.setdefault(name_of_unseen(pair), []).append(pair["predicted_ns"] / pair["graph_ns"] - 1)
    return [[name, GRAPH, str(len(found)), *errors(found)] for name, found in groups.items()]


@block("predictions of eager steps")
def predictions_of_eager_steps() -> list[str]:
    """Return the errors of predicted CPU times and eager steps, beside those of the GPU's time alone."""
    found = read(PREDICTED_WHOLES)
    groups: dict[str, list[Pair]] = {}
    for pair in sorted(found["pairs"], key=lambda pair: pair["mode"]):
        day = "" if pair["eager_in_turn"] else ", on another day"
        groups.setdefault(f"{pair['mode']}, {kind_of(pair)}{day}", []).append(pair)
    for pair in sorted(found["unseen_pairs"], key=lambda pair: (is_known(pair), pair["mode"])):
        groups.setdefault(name_of_unseen(pair), []).append(pair)
    rows = []
    for name, pairs in groups.items():
        cpu, step, alone = (
            [pair[ours] / pair[measured] - 1 for pair in pairs if pair[measured]]
            for ours, measured in (
                ("predicted_cpu_ns", "cpu_ns"),
                ("predicted_eager_ns", "eager_ns"),
                ("predicted_ns", "eager_ns"),
            )
        )
        cpu_cells = [str(len(cpu)), percent(middle(cpu)), percent(worst(cpu))] if cpu else ["–"] * 3
        rows.append([name, *cpu_cells, str(len(step)), *errors(step), percent(middle(alone)), percent(worst(alone))])
    all_pairs = [pair for key in ("pairs", "unseen_pairs") for pair in found[key] if pair["cpu_ns"]]
    limited = [pair["cpu_ns"] > pair["graph_ns"] for pair in all_pairs if pair["graph_ns"]]
    said = [pair["predicted_cpu_ns"] > pair["predicted_ns"] for pair in all_pairs if pair["graph_ns"]]
    right = sum(one == other for one, other in zip(limited, said, strict=True))
    head = ["models", "n", "CPU time: median", "worst", "n", "eager step: median", "mean", "worst"]
    return [
        *wrap(f"{about(found, 'operators/predict_wholes.py')}, of measurements on an {found['card']}."),
        "",
        *table([*head, "GPU time alone: median", "worst"], rows),
        "",
        *wrap(
            f"Of {len(limited)} steps, the CPU takes longer than the GPU in {sum(limited)}. The prediction says for",
            f"{right} which of both it is.",
            *speed_of_host(),
        ),
    ]


def speed_of_host() -> list[str]:
    """Return how far apart measured CPU times of the same step are, in two sessions and at two input sizes."""
    now = {pair["workload"]: pair["host_ns"] for pair in read(WITH_HOST_TIME[""])["pairs"]}
    later = {pair["workload"]: pair["host_ns"] for pair in read(DAYS_LATER)["pairs"]}
    apart = [now[name] / later[name] - 1 for name in later if name in now]
    return [
        "Part of the errors are differences of the measured times: those of the same "
        f"{len(apart)} steps in two sessions are {percent(middle(apart))} (median) and {percent(worst(apart))} (worst)",
        "apart.",
    ]


@block("repeated measurements of operators")
def repeated_measurements() -> list[str]:
    """Return how far apart two measurements of the same operators are."""
    results = read(REPEATED)
    time = results["time"]
    return wrap(
        f"Two measurements of the same {results['operators']} operators in one process were",
        f"{percent(time['median_frac'], 2)} apart (median) and {percent(time['p90_frac'], 2)} (90th percentile).",
        "They ran one after the other on one GPU.",
        f"Measured: {about(results, 'operators/operator_repeat.py')}.",
        *measured_days_later(),
    )


def measured_days_later() -> list[str]:
    """Return how far apart the same models and their operators are in another session."""
    first, later = read(PAIRS["inference"]), read(DAYS_LATER)
    before = {pair["workload"]: pair for pair in first["pairs"]}
    pairs = [(before[pair["workload"]], pair) for pair in later["pairs"]]
    parts = {"sums of GPU times": "busy_ns", "CUDA graphs": "graph_ns", "eager models": "whole_ns"}
    words = []
    for name, key in parts.items():
        changes = [pair[key] / one[key] - 1 for one, pair in pairs]
        words.append(f"{name} {percent(middle(changes))} (median) and {percent(worst(changes))} (worst)")
    dates = [environment_of(results)["date"][:10] for results in (first, later)]
    return [
        f"{len(pairs)} models and their operators were measured on {dates[0]} and again on {dates[1]}.",
        f"The times differ: {'; '.join(words)}.",
        "Eager models that wait for the CPU depend on the host and its other load.",
    ]


@block("time to measure an operator")
def time_to_measure() -> list[str]:
    """Return how long an operator takes to measure."""
    time, energy = read(REPEATED), read(RESULTS + "operator_repeat_window.json")
    each = " and ".join(f"{seconds:.2f} s" for seconds in time["seconds_an_operator"])
    both = energy["seconds_an_operator"][0]
    return wrap(
        f"- An operator took {each} to measure for time (two campaigns of {time['operators']}), and {both:.1f} s with",
        f"energy ({energy['operators']} operators). {about(time, 'operators/operator_repeat.py')}.",
    )


@block("cache modes")
def cache_modes() -> list[str]:
    """Return the errors of five ways to measure an operator, and their sums against the whole model."""
    found = {name: read(place) for name, place in CACHES.items()}
    head = ["way", *(title for name in found for title in (f"{name}, error", "n", "sum / graph"))]
    rows = []
    for way in next(iter(found.values()))["errors"]:
        cells = []
        for results in found.values():
            one = results["errors"][way]
            ratio = results["sums_ns"][way] / results["graph_ns"]
            cells += [percent(one["weighted_error_frac"]), str(one["operators"]), f"{ratio:.3f}"]
        rows.append([way.replace("_", " "), *cells])
    first = next(iter(found.values()))
    return [*wrap(f"{about(first, 'operators/operator_cache.py')}."), "", *table(head, rows)]


@block("stopped campaign")
def stopped_campaign() -> list[str]:
    """Return what a campaign came to in which a worker was stopped."""
    results = read(RESULTS + "ray_campaign.json")
    kept = results["kept"]
    again = kept["there_again"]
    return wrap(
        f"In a campaign in which a worker was stopped, {kept['records']} records were measured, {kept['failed']}",
        f"failed and {again} were measured twice. Measured: {about(results, 'operators/ray_campaign.py')}.",
    )


OTHER_GPUS = "operators/results/cpu/neusight.json"
GPUS = {
    "NVIDIA_H100_80GB_HBM3": "H100",
    "NVIDIA_A100-PCIE-40GB": "A100 40 GB",
    "Tesla_V100-PCIE-32GB": "V100",
    "NVIDIA_L4": "L4",
    "Tesla_T4": "T4",
    "Tesla_P100-PCIE-16GB": "P100",
    "Tesla_P4": "P4",
}
"""A GPU in NeuSight's data -> its name on the page."""
MODES = {"inf": "inference", "train": "training"}


@block("predictions on other GPUs")
def predictions_on_other_gpus() -> list[str]:
    """Return median and worst error of whole models on GPUs that others measured, beside their own predictor's."""
    ways = ("predicted_frac", "one_gpu_left_out_frac", "neusight_frac")
    rows = []
    for name, wholes in read(OTHER_GPUS)["wholes"].items():
        gpu, _, mode = name.partition(", ")
        if gpu not in GPUS:
            continue
        errors_by_way = [f"{percent(wholes[way]['median_frac'])}, {percent(wholes[way]['worst_frac'])}" for way in ways]
        row = [f"{GPUS[gpu]}, {MODES[mode]}", str(wholes["predicted_frac"]["n"]), *errors_by_way]
        rows.append(row)
    head = ["GPU, mode", "models", "error", "without what was learned of this GPU", "NeuSight"]
    return [*wrap(f"{about(read(OTHER_GPUS), 'operators/neusight.py')}."), "", *table(head, sorted(rows), 1)]


@block("predictions of layers on other GPUs")
def predictions_of_layers() -> list[str]:
    """Return median and worst error of single operators by kind, without what was learned of their GPU."""
    found = {GPUS[gpu]: kinds for gpu, kinds in read(OTHER_GPUS)["operators"].items()}
    kinds = sorted(
        {kind for one in found.values() for kind in one}, key=lambda kind: (not kind.startswith("all"), kind)
    )
    rows = []
    for kind in kinds:
        errors_by_gpu = [one[kind]["one_gpu_left_out"] if kind in one else None for one in found.values()]
        rows.append([kind.replace("all,", "all kinds,"), *map(_median_and_worst, errors_by_gpu)])
    return table(["operator", *found], rows)


def _median_and_worst(errors_frac: dict[str, float] | None) -> str:
    if errors_frac is None:
        return "–"
    size = f"{percent(errors_frac['median_frac'], 0)}, {percent(errors_frac['worst_frac'], 0)}"
    return f"{size} ({errors_frac['n']})"
