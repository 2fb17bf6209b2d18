"""What the flight recorder costs, and what Python stacks in the allocator's history cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import numpy as np

from gpuledger.ops.database.statistics import median_interval
from pages.blocks import ROOT, block
from pages.overhead import measured_models
from pages.results import MIB, Results, about, percent, read, table, when, wrap

FLIGHT = "time/results/h200/flight_recorder.json"
FLIGHT_AGAIN = [f"time/results/h200/flight_recorder_{name}.json" for name in ("neumf",)]
"""The model that was measured again, after the recorder had changed."""
FLIGHT_ON_CPU = "time/results/cpu/flight_recorder.json"
STACKS = "time/results/h200/history_stacks.json"
LEAKS = "memory/results/cpu/leaks.json"
MANY_BLOCKS = "memory/results/h200/many_blocks.json"
MOST = {"GPU": 1.005, "CPU": 1.02}
"""What limits a step -> how long it may be, relative to a step without the flight recorder: the goals."""
MET, MISSED, OPEN = "met", "missed", "undecided"
NO_STACKS, OF_ALLOCATIONS, OF_ALL = (
    "history, no stacks",
    "history, stacks of allocations",
    "history, stacks of every event",
)


def limits() -> dict[str, str]:
    """Return what limits a step of each model, as in the table of overhead."""
    return {name: model["binds"] for name, model in measured_models().items()}


def span(values: Iterable[float], digits: int) -> str:
    """Return the smallest and the largest of some figures; one figure if these are equal as they are shown."""
    found = list(values)
    least, most = (f"{one:,.{digits}f}" for one in (min(found), max(found)))
    return most if least == most else f"{least} to {most}"


@block("cost of the flight recorder")
def cost_of_the_flight_recorder() -> list[str]:
    """Return step times, host memory and times of the flight recorder's parts for each model, against the goals."""
    results = read(FLIGHT)
    models, limited_by = results["models"], limits()
    verdicts = {name: _verdict(one["ratios"], MOST[limited_by[name]]) for name, one in models.items()}
    rounds = [len(one["ratios"]) for one in models.values()]
    goals = " and ".join(f"× {most:g} where the {unit} limits the step" for unit, most in MOST.items())
    counts = {
        verdict: [name for name, found in verdicts.items() if found == verdict] for verdict in (MET, MISSED, OPEN)
    }
    told = [f"{len(names)} {verdict} ({', '.join(names)})" for verdict, names in counts.items() if names]
    on_cpu = read(FLIGHT_ON_CPU)
    rounds_us = on_cpu["rounds"]["whole"]["values"]
    error_ms = on_cpu["error_of_100000_blocks"]["cpu_ms"]["median"]
    rings = [one["ring"] for one in models.values()]
    events_ns = [one["event_ns"] for one in rings]
    counters_frac = [one["counters_ns"] / one["step_s"] / 1e9 for one in models.values()]
    counters_us = span((one["counters_ns"] / 1e3 for one in models.values()), 0)
    copy_ms = span((one["snapshot_s"] * 1e3 for one in models.values()), 0)
    return [
        *wrap(
            f"{about(results, 'time/flight_recorder.py')}. Steps with the flight recorder, relative to steps",
            f"without it in the same round: medians of {min(rounds)} to {max(rounds)} rounds, on a shared host. The",
            f"goals are {goals}. Of {len(models)} models: {'; '.join(told)}. A goal is met or missed if the 95 %",
            "interval of the median (bootstrap over the rounds) is on one side of it.",
        ),
        "",
        *table(
            [
                "model",
                "limited by",
                "step",
                "95 % interval",
                "n",
                "goal",
                "CPU time",
                "last events",
                "with them in every step",
            ],
            [_flight_row(name, one, limited_by[name], verdicts[name]) for name, one in models.items()],
            2,
        ),
        "",
        *measured_again(limited_by),
        "",
        *wrap(
            "CPU time is that of the process, until the last step is launched.",
            f"Reading and storing the counters takes {counters_us} µs per step, at most",
            f"{percent(max(counters_frac), 2)} of one.",
            "Of the last events, each takes the time by which the steps with them in every step are longer:",
            f"{statistics.median(events_ns):,.0f} ns in the median of these models ({span(events_ns, 0)} ns).",
            *(["A negative time is noise."] if min(events_ns) < 0 else []),
            "The hooks that count steps are not in this table, but in the next figure. Copying the history at an error",
            f"takes {copy_ms} ms.",
        ),
        "",
        *wrap(
            f"On a CPU, a step of a tiny training takes {on_cpu['more_us']:.0f} µs of CPU time more with the flight",
            f"recorder than without it: {parts_of(on_cpu['parts_us'])}.",
            f"In {len(rounds_us)} rounds on a shared machine it was {span(rounds_us, 0)} µs more. Without it, the step",
            f"takes {on_cpu['step_us']:.0f} µs.",
            f"An error with 100,000 blocks takes {error_ms / 1e3:.1f} s of CPU time.",
            f"Measured: {about(on_cpu, 'time/flight_recorder_cpu.py')}.",
        ),
        *(error_lines(read(MANY_BLOCKS)) if (ROOT / "bench" / MANY_BLOCKS).exists() else []),
    ]


def error_lines(results: Results) -> list[str]:
    """Return what an out-of-memory error costs on a GPU, by the number of live blocks."""
    counts = results["counts"]
    rows = [
        [
            f"{int(count):,}",
            *(f"{one[way]['wall_s']['median']:.3f} s" for one in (found,) for way in ("with", "without")),
            f"{found['with']['cpu_s']['median']:.3f} s",
            f"{found['with']['host_peak_more_bytes']['median'] / MIB:,.0f} MiB",
            f"{found['with']['written_bytes']['median'] / MIB:,.1f} MiB",
        ]
        for count, found in counts.items()
    ]
    more = [one for found in counts.values() for one in found["more_on_the_card"]]
    asked = sum(one["allocations"] - bare["allocations"] for one, bare in zip(more, _bare(counts), strict=True))
    rounds = min(len(found["with"]["wall_s"]["values"]) for found in counts.values())
    own = all(found["is_the_programs"] and found["same_message"] for found in counts.values())
    longest = max(one for found in counts.values() for one in found["with"]["wall_s"]["values"])
    return [
        "",
        *wrap(
            f"{about(results, 'memory/many_blocks.py')}: from a request that fails to the exception in the program,",
            f"medians of {rounds} processes each. The goal is at most {results['goal_s']:g} s. The longest took",
            f"{longest:.2f} s.",
            f"PyTorch's allocator had {asked} more requests than without gpuledger." if asked else "",
            "gpuledger allocated nothing on the GPU meanwhile." if not asked else "",
            "The program received its own exception with its own message." if own else "",
        ),
        "",
        *table(["live blocks", "time", "without gpuledger", "CPU time", "host memory", "written"], rows, right_from=0),
    ]


def _bare(counts: Results) -> list[Results]:
    """Return what the allocator counted in the same processes without gpuledger, one for each with it."""
    return [found["more_on_the_card_without"][0] for found in counts.values() for _ in found["more_on_the_card"]]


PARTS = {
    "counting_steps": "to count steps in hooks of the optimizer",
    "counters": "to read and store counters",
    "other_recording": "for the rest",
}


def parts_of(parts_us: dict[str, float]) -> str:
    """Return what the time of a step is made of."""
    *first, last = (f"{parts_us[name]:.0f} µs {what}" for name, what in PARTS.items())
    return f"{', '.join(first)}, and {last}"


def measured_again(limited_by: dict[str, str]) -> list[str]:
    """Return what was measured after the recorder had changed, in words."""
    every = [read(name) for name in FLIGHT_AGAIN]
    found = []
    for name, one in sorted(item for results in every for item in results["models"].items()):
        least, most = median_interval(np.asarray(one["ratios"]))
        verdict = _verdict(one["ratios"], MOST[limited_by[name]])
        found.append(
            f"{name} × {one['ratio']:.4f} ({least:.4f} to {most:.4f}, n = {len(one['ratios'])}), goal"
            f" × {MOST[limited_by[name]]:g}: {verdict}"
        )
    return wrap(
        f"Measured again, because the recorder decides less often since then: {'; '.join(found)}",
        f"({when(every[0], 'time/flight_recorder.py')}).",
    )


def _flight_row(name: str, one: Results, limited_by: str, verdict: str) -> list[str]:
    least, most = median_interval(np.asarray(one["ratios"]))
    return [
        name,
        limited_by,
        f"× {one['ratio']:.4f}",
        f"{least:.4f} to {most:.4f}",
        str(len(one["ratios"])),
        f"× {MOST[limited_by]:g}: {verdict}",
        f"× {one['cpu_ratio']:.4f}",
        "kept" if one["ring"]["is_kept"] else "not kept",
        f"× {one['ring']['ratio']:.4f}",
    ]


def _verdict(ratios: list[float], goal: float) -> str:
    """Return whether the median of the ratios is below the goal, above it, or too uncertain to tell."""
    least, most = median_interval(np.asarray(ratios))
    return MET if most <= goal else MISSED if least > goal else OPEN


@block("times of a census")
def times_of_a_census() -> list[str]:
    """Return the CPU time of both looks for what grows, in programs on the CPU and in trainings on a GPU."""
    on_cpu, on_gpu = read(LEAKS), read(FLIGHT)
    programs = [one for group in on_cpu["programs"].values() for one in group.values()]
    walks = [time_ms for one in programs for time_ms in one["censuses_ms"]]
    counts = [time_ms for one in programs for time_ms in one["counts_ms"]]
    longest_ms = max(one["census_ns"] for one in on_gpu["models"].values()) / 1e6
    return wrap(
        f"In {len(programs)} programs, {len(walks)} searches took at most {max(walks):.0f} ms, and {len(counts)}",
        f"counts at most {max(counts):.0f} ms ({about(on_cpu, 'memory/leaks.py')}).",
        f"In {len(on_gpu['models'])} trainings on a GPU, a search took at most {longest_ms:.0f} ms",
        f"({about(on_gpu, 'time/flight_recorder.py')}).",
    )


@block("cost of stacks")
def cost_of_stacks() -> list[str]:
    """Return what stacks cost in each model, beside the share of a step in which the CPU issues work."""
    results = read(STACKS)
    models, limited_by = results["models"], limits()
    rounds = [one["rounds"] for one in models.values()]

    def of(unit: str) -> list[Results]:
        return [one for name, one in models.items() if limited_by[name] == unit]

    def told(unit: str) -> str:
        issued = [one["bare"]["issued_frac"] for one in of(unit)]
        stacks = [one[way]["ratio"] for one in of(unit) for way in (OF_ALLOCATIONS, OF_ALL)]
        return (
            f"{percent(min(issued), 0)} to {percent(max(issued), 0)} of it, and stacks make it {span(stacks, 2)} times"
            " as long"
        )

    rows = [
        [
            name,
            limited_by[name],
            f"{one['bare']['step_ms']:.1f} ms",
            percent(one["bare"]["issued_frac"], 0),
            f"{one['events_per_step']:,}",
            *(f"× {one[way]['ratio']:.2f}" for way in (NO_STACKS, OF_ALLOCATIONS, OF_ALL)),
        ]
        for name, one in models.items()
    ]
    head = ["model", "limited by", "step", "CPU issues work", "events of a step", "no stacks", "of allocations"]
    return [
        *wrap(
            "The thread that allocates also takes the stack, which is time of the CPU. Where the CPU limits a step, it",
            f"issues work during {told('CPU')}. Where the GPU limits a step, the CPU issues work during {told('GPU')}.",
            "The stacks are then taken while the GPU still has work.",
        ),
        "",
        *wrap(
            f"{about(results, 'time/history_stacks.py')}, medians of {min(rounds)} to {max(rounds)} rounds, relative",
            "to steps of the same round without a history. The host was shared with other work: a history without",
            "stacks seems to make some steps shorter.",
        ),
        "",
        *table([*head, "of all events"], rows, 2),
    ]
