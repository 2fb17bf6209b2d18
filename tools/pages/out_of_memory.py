"""What was measured of programs that run out of memory."""

from __future__ import annotations

import sys

from pages.blocks import ROOT, block
from pages.results import MIB, Results, about, read, table, when, wrap

sys.path.insert(0, str(ROOT / "bench" / "lib"))

from crash_messages import shown_by_torch

SETTINGS = "memory/results/h200/allocator_settings.json"
FAILURES = "memory/results/h200/out_of_memory.json"
REPLAYS = "estimate/results/h200/other_settings.json"
DRIVER_ADDRESSES = (
    "The rest depends on the addresses that the driver gives to new segments, which a replay does not know. "
    "They decide which of two equal free blocks is taken. "
    "A replay of the recording with its own setting is off by the same bytes."
)
ON_THE_HOST = "memory/results/cpu/host_out_of_memory.json"
LEAKS = "memory/results/cpu/leaks.json"
FAILURES_AGAIN = "memory/results/h100/out_of_memory.json"
"""The same programs on a GPU with less memory."""
FAILURES_EARLY = "memory/results/h200/out_of_memory_early.json"
"""The same programs, with failures while the time of steps is measured."""
TOOLS = {"message": "PyTorch's message", "snapshot": "its memory snapshot", "gpuledger": "gpuledger"}
ADVICE = "expandable_segments:True"


@block("causes of out-of-memory errors")
def causes() -> list[str]:
    """Return what `show` says first about each program that failed."""
    results = read(FAILURES)
    programs = results["programs"]
    right = sum(bool(found["right"]) for found in programs.values())
    messages = {name: found.get("without", found)["error"] for name, found in programs.items()}
    by_torch = {name: shown_by_torch(found["planted"], messages[name]) for name, found in programs.items()}
    rows = [
        [name.replace("_", " "), found["sentence"] or "not explained", "yes" if by_torch[name] else "–"]
        for name, found in programs.items()
    ]
    advised = sum(ADVICE in message for message in messages.values())
    return [
        *wrap(
            f"{about(results, 'memory/out_of_memory.py')}, {len(programs)} programs that fail, one run of each. The",
            f"first sentence names the planted cause in {right} of them.",
        ),
        "",
        *wrap(
            "The last column is PyTorch's own message: whether it shows the planted cause. It shows a request of more",
            "than half of the GPU, and fragmentation if more bytes are unallocated than requested. It names other",
            f"processes, private pools and a limit. That is {sum(by_torch.values())} of {len(programs)}.",
            f"In {advised} of them it advises `{ADVICE}`.",
        ),
        "",
        *table(["planted cause", "first sentence", "PyTorch's message"], rows, right_from=3),
        "",
        *wrap(*early()),
        "",
        *wrap(*again()),
        *side_by_side(results),
    ]


def side_by_side(results: Results) -> list[str]:
    """Return which questions about the same crashes each tool answers rightly, and what its files cost."""
    if "questions" not in results:
        return []
    programs = results["programs"].values()
    costs = [
        ("Writing the snapshot takes", [one["without"]["snapshot_s"] for one in programs], "snapshot_bytes", True),
        ("Recording the error takes", [max(one["took_ns"], default=0) / 1e9 for one in programs], "run_bytes", False),
    ]
    spans = [
        f"{what} {least_and_most([1e3 * one for one in seconds], 'ms')}, and the {'file' if bare else 'run'} has "
        f"{least_and_most([(one['without'] if bare else one)[size] / MIB for one in programs], 'MiB')}."
        for what, seconds, size, bare in costs
    ]
    rows = [
        [text, *(answered([one["answers"].get(tool, {}).get(name) for one in programs]) for tool in TOOLS)]
        for name, text in results["questions"].items()
    ]
    return [
        "",
        *wrap(
            "The next table compares what is known after the same crashes. The programs also ran without gpuledger,",
            "with PyTorch's memory history of 100,000 events and an observer that writes a snapshot at the error. A",
            "script reads the answers: from the message with its traceback, from the snapshot, and from the values",
            "that `gpuledger show --json` prints. A cell has the right answers, of the crashes for which the truth is",
            "known.",
        ),
        "",
        *table(["question", *TOOLS.values()], rows, right_from=1),
        "",
        *wrap(*spans),
    ]


def answered(answers: list[dict[str, str] | None]) -> str:
    """Return how many answers are right, and how many are wrong; a dash if there is none at all."""
    grades = [one["grade"] for one in answers if one is not None]
    right, wrong = grades.count("right"), grades.count("wrong")
    if not right and not wrong:
        return "–"
    return f"{right} of {len(grades)}" + (f", {wrong} wrong" if wrong else "")


def least_and_most(values: list[float], unit: str) -> str:
    """Return a range of values."""
    least, most = (f"{one:,.0f}" if one >= 10 else f"{one:.1f}" for one in (min(values), max(values)))
    return f"{least} to {most} {unit}"


def again() -> list[str]:
    """Return what the same programs gave on another GPU."""
    results = read(FAILURES_AGAIN)
    programs = results["programs"].values()
    right = sum(bool(found["right"]) for found in programs)
    return [
        f"{about(results, 'memory/out_of_memory.py')}: the first sentence names the planted cause in {right} of",
        f"{len(programs)} programs.",
    ]


def early() -> list[str]:
    """Return what the same programs gave when they failed earlier."""
    results = read(FAILURES_EARLY)
    programs = results["programs"].values()
    right = sum(bool(found["right"]) for found in programs)
    lines = [found["answers"]["gpuledger"].get("holding_line") for found in programs]
    known = [one["grade"] for one in lines if one is not None]
    return [
        f"With failures after {results['healthy_steps']} steps, while the time of steps is measured, the first",
        f"sentence names the planted cause in {right} of {len(programs)} programs. The line that holds most memory",
        f"is right in {known.count('right')} of {len(known)}. {about(results, 'memory/out_of_memory.py')}",
        "with `--after`.",
    ]


@block("causes on the host")
def causes_on_the_host() -> list[str]:
    """Return what `show` says about each program that ended for lack of host memory, or by SIGKILL."""
    results = read(ON_THE_HOST)
    programs = results["programs"]
    right = sum(found["right"] for found in programs.values())
    rows = [
        [name, found["sentence"] or "not explained", f"`{found['last_line']}`" if found["last_line"] else "–"]
        for name, found in programs.items()
    ]
    return [
        *wrap(
            f"{about(results, 'memory/host_out_of_memory.py')}, {len(programs)} programs, one run of each. The first",
            f"sentence is right in {right} of them. The last column is the last line of the program without gpuledger.",
        ),
        "",
        *table(["planted cause", "first sentence", "without gpuledger"], rows, right_from=3),
    ]


@block("verdicts on allocator settings")
def settings() -> list[str]:
    """Return how many verdicts on other settings agree with real runs."""
    results = read(SETTINGS)
    counts = results["counts"]
    found: dict[str, list[tuple[bool, bool]]] = {}
    for program in results["programs"].values():
        for setting, one in program.get("settings", {}).items():
            if one["real"] is not None and one["verdict"] is not None:
                found.setdefault(setting, []).append((one["verdict"], one["real"]))
    rows = [
        [
            f"`{setting}`",
            f"{sum(real for _, real in pairs)} of {len(pairs)}",
            str(sum(verdict is real for verdict, real in pairs)),
            str(sum(verdict and not real for verdict, real in pairs)),
            str(sum(real and not verdict for verdict, real in pairs)),
        ]
        for setting, pairs in found.items()
    ]
    return [
        *wrap(
            f"{about(results, 'memory/allocator_settings.py')}. {counts['programs']} programs with a limit of 4 GiB,",
            f"of which {counts['failed']} run out of memory with the default settings. Each of these ran again with",
            f"{len(rows)} other settings, without gpuledger. {counts['right']} of {counts['verdicts']} verdicts are",
            f"right, and {counts['undecided']} are unknown.",
        ),
        "",
        *table(
            ["setting", "the request fits", "right", "wrong: “would have fitted”", "wrong: “would not”"],
            rows,
            right_from=1,
        ),
    ]


@block("reserved bytes with other settings")
def reserved_with_other_settings() -> list[str]:
    """Return how the reserved bytes of replays with another setting compare with recordings with that setting."""
    results = read(REPLAYS)
    others = [one for one in results["replays"] if one["recorded_with"] != one["setting"]]
    own = {
        (one["training"], one["setting"]): one["error_bytes"]
        for one in results["replays"]
        if one["recorded_with"] == one["setting"]
    }
    equal = sum(not one["error_bytes"] for one in others)
    off = [one for one in others if one["error_bytes"]]
    same = all(own[one["training"], one["setting"]] == one["error_bytes"] for one in off)
    rows = [
        [
            one["training"],
            _named(one["recorded_with"]),
            _named(one["setting"]),
            f"{one['recorded_bytes'] / MIB:,.0f} MiB",
            "equal" if not one["error_bytes"] else f"{one['error_bytes'] / MIB:+,.0f} MiB",
        ]
        for one in others
    ]
    return [
        *wrap(
            f"{len({one['training'] for one in others})} trainings were recorded with two settings. Each recording is",
            f"replayed with the setting of the other one: {equal} of {len(others)} replays have the bytes that the GPU",
            "reserved.",
            DRIVER_ADDRESSES if off and same else "",
            f"Recorded: {about(results)}. Replayed: {when({'environment': results['replayed_on']})},",
            "`bench/estimate/other_settings.py`.",
        ),
        "",
        *table(["training", "recorded with", "replayed with", "reserved on the GPU", "replay"], rows, right_from=3),
    ]


def _named(setting: str) -> str:
    return f"`{setting}`" if setting else "the default"


@block("leaks that are found")
def leaks() -> list[str]:
    """Return how many planted leaks are found, and how many healthy programs seem to leak."""
    results = read(LEAKS)
    leaking, healthy = results["leaks"], results["healthy"]
    return wrap(
        f"{about(results, 'memory/leaks.py')}: of {leaking['programs']} programs with a leak, the growth is found in",
        f"{leaking['found']}, and named rightly in {leaking['named']}. Of {healthy['programs']} programs without one,",
        f"{healthy['false_alarms']} seem to have one.",
        *(f"Not found: {one[0].lower()}{one[1:]}" for one in leaking["missed"]),
    )
