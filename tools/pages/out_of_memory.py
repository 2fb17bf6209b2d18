"""What was measured of programs that run out of memory."""

from __future__ import annotations

import re

from pages.blocks import block
from pages.results import MIB, about, read, table, when, wrap

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
ADVICE = "expandable_segments:True"
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@block("causes of out-of-memory errors")
def causes() -> list[str]:
    """Return what `show` says first about each program that failed."""
    results = read(FAILURES)
    programs = results["programs"]
    right = sum(bool(found["right"]) for found in programs.values())
    by_torch = {name: shown_by_torch(found["planted"], found["error"]) for name, found in programs.items()}
    rows = [
        [name.replace("_", " "), found["sentence"] or "not explained", "yes" if by_torch[name] else "–"]
        for name, found in programs.items()
    ]
    advised = sum(ADVICE in found["error"] for found in programs.values())
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
        *wrap(*again()),
    ]


def again() -> list[str]:
    """Return what the same programs gave on another GPU."""
    results = read(FAILURES_AGAIN)
    programs = results["programs"].values()
    right = sum(bool(found["right"]) for found in programs)
    return [
        f"{about(results, 'memory/out_of_memory.py')}: the first sentence names the planted cause in {right} of",
        f"{len(programs)} programs.",
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


def shown_by_torch(planted: str, message: str) -> bool:
    """Return whether PyTorch's message shows the planted cause, by its numbers or its words."""
    tried, total = _bytes_in(message, "Tried to allocate {}"), _bytes_in(message, "total capacity of {}")
    unallocated = _bytes_in(message, "{} is reserved by PyTorch but unallocated")
    shown = {
        "one_large_request": tried is not None and total is not None and tried > total / 2,
        "fragmentation": tried is not None and unallocated is not None and unallocated > tried,
        "other_processes": re.search(r"\bProcess \d+ has\b", message) is not None,
        "private_pool": "private pools" in message,
        "memory_fraction": " allowed;" in message,
    }
    return shown.get(planted, False)


def _bytes_in(message: str, where: str) -> float | None:
    """Return the size at ``{}`` in a message; None if it is not there."""
    found = re.search(where.format(r"([\d.]+) (bytes|KiB|MiB|GiB)"), message)
    return None if found is None else float(found[1]) * UNITS[found[2]]


@block("leaks that are found")
def leaks() -> list[str]:
    """Return how many planted leaks are found, and how many healthy programs seem to leak."""
    results = read(LEAKS)
    leaking, healthy = results["leaks"], results["healthy"]
    return wrap(
        f"{about(results, 'memory/leaks.py')}: of {leaking['programs']} programs with a leak, the growth is found in",
        f"{leaking['found']}, and named rightly in {leaking['named']}. Of {healthy['programs']} programs without one,",
        f"{healthy['false_alarms']} seem to have one.",
    )
