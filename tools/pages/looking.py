"""What was measured of reports, imports, merged runs, scopes and watching."""

from __future__ import annotations

from pages.blocks import block
from pages.results import MIB, Results, about, percent, read, table, wrap

SCOPES = "time/results/h200/scopes.json"
BUSY_SCOPES = "time/results/h200/scopes_busy_host.json"
IMPORTED = "report/results/cpu/import_snapshot.json"
RANKS = "report/results/cpu/ranks.json"
MERGED_S, MERGED_BYTES = 5, 500_000_000
"""The most time and memory that the merged view of a thousand ranks should take."""
FRAMES = "report/results/cpu/report_frames.json"
SCALE = "report/results/cpu/scale.json"
WATCH = "watch/results/h200/watch.json"
DAY = "watch/results/cpu/watch_day.json"


def with_range(found: Results) -> str:
    """Return a factor with the range of its median."""
    return (
        f"{found['median']:.3f} times ({found['median_low']:.3f} to {found['median_high']:.3f}, n = {found['count']})"
    )


@block("scopes")
def scopes() -> list[str]:
    """Return what scopes cost, each and a thousand in a step."""
    quiet, busy = read(SCOPES), read(BUSY_SCOPES)
    idle, recorded = quiet["one_scope_ns"], quiet["one_recorded_scope_ns"]
    rows = [
        ["nothing is recorded, `with` block", f"{idle['with'] / 1e3:.2f} µs", with_range(quiet["unrecorded"])],
        ["nothing is recorded, decorator", f"{idle['decorated'] / 1e3:.2f} µs", ""],
        ["recorded steps, `with` block", f"{recorded['with'] / 1e3:.1f} µs", with_range(quiet["in_window"])],
        ["recorded steps, decorator", f"{recorded['decorated'] / 1e3:.1f} µs", ""],
        ["recorded steps, CPU busy with other programs", "", with_range(busy["in_window"])],
    ]
    step = f"{quiet['scopes_per_step']:,} scopes in a step of GPT-2 small"
    return [
        *wrap(f"{about(quiet, 'time/scopes.py')}."),
        "",
        *table(["situation", "per scope", step], rows),
    ]


@block("import of a snapshot")
def import_of_a_snapshot() -> list[str]:
    """Return time and memory of the import of a large snapshot."""
    results = read(IMPORTED)
    found = results["without stacks"]["import"]
    times = found["wall_all_s"]
    return wrap(
        f"{results['events']:,} events took {found['wall_s']:.1f} s (median of {len(times)}, {max(times):.1f} s at",
        f"most) and {found['peak_rss_bytes'] / MIB:.0f} MiB to import.",
        f"Measured: {about(results, 'report/import_snapshot.py')}.",
    )


@block("merged ranks")
def merged_ranks() -> list[str]:
    """Return time and memory of the merged view of many ranks."""
    results = read(RANKS)
    rows = []
    for name, title in (
        ("recorded_64", "64 ranks with 2,000 blocks each"),
        ("simulated_1000", "1,000 simulated ranks with 2,000 modules each"),
    ):
        found = results[name]
        for command in ("show", "report"):
            one = found[command]
            label = command if command == "show" else f"report ({found['report_bytes'] / 1024:.0f} KiB)"
            cells = [f"{one['cpu_s']:.1f} s", f"{one['wall_s']:.1f} s", f"{one['peak_rss_bytes'] / MIB:.0f} MiB"]
            rows.append([title, label, *cells])
    merged = results["merge_1000"]
    cells = [f"{merged['cpu_s']:.1f} s", f"{merged['wall_s']:.1f} s", f"{merged['peak_rss_bytes'] / MIB:.0f} MiB"]
    rows.append(["the same", "the merged view alone", *cells])
    is_met = max(merged["cpu_s"], merged["wall_s"]) <= MERGED_S and merged["peak_rss_bytes"] <= MERGED_BYTES
    repeats = results["recorded_64"]["show"]["repeats"]
    return [
        *wrap(
            f"{about(results, 'report/ranks.py')}. Lowest of {repeats} repeats on {results['cores']} cores, with a",
            f"load average of {results['load_average']:.1f}. The goal for the merged view of 1,000 ranks is",
            f"{MERGED_S} s and {MERGED_BYTES // 10**6} MB: {'met' if is_met else 'missed'}, in CPU time and by the",
            "wall clock.",
        ),
        "",
        *table(["run", "command", "CPU time", "wall clock", "peak memory"], rows, 2),
    ]


@block("size of reports")
def size_of_reports() -> list[str]:
    """Return what a run of a million blocks takes to show."""
    frames, scale = read(FRAMES), read(SCALE)
    medians = [one["median"] for one in frames["frame_ms"].values()]
    slowest = max(one["max"] for one in frames["frame_ms"].values())
    show, report = scale["show"], scale["report"]

    def cost(found: Results) -> str:
        return f"{found['wall_s']:.1f} s and {found['peak_rss_bytes'] / MIB:.0f} MiB"

    return [
        *wrap(
            f"- A run of {frames['blocks']:,} blocks becomes a file of {frames['file_bytes'] / 1e6:.1f} MB.",
            "The browser",
            f"shows it after {frames['ready_ms']['median'] / 1e3:.2f} s, and redraws in {min(medians):.0f} to",
            f"{max(medians):.0f} ms (medians of {len(medians)} actions, {slowest:.0f} ms at most).",
            f"Measured: {about(frames, 'report/report_frames.py')}.",
        ),
        *wrap(
            f"- On two CPU cores, such a run takes `report` {cost(report)}, and `show` {cost(show)} (medians of",
            f"{scale['repeats']}). Measured: {about(scale, 'report/scale.py')}.",
        ),
    ]


@block("watching")
def watching() -> list[str]:
    """Return how well samples keep time, and what taking them costs."""
    results = read(WATCH)
    alone, steady, fast, slow = results["alone"], results["steady"], results["rate"]["500us"], results["slow_down"]
    ratios = slow["ratios"]
    rows = [
        ["samples on time at 200 Hz, for a minute", percent(steady["sampler"]["on_time_frac"], 2)],
        ["highest rate for ten seconds", f"{fast['rate_hz']:,.0f} Hz, {percent(fast['on_time_frac'])} on time"],
        [
            "CPU time of the sampler at 200 Hz",
            f"{percent(alone['cpu_frac_of_a_core'])} of a core; {percent(steady['cpu_frac_of_a_core'])} with "
            f"{steady['windows']} energy windows a minute",
        ],
        [
            "slow-down of GPT-2 small",
            f"{slow['median_ratio']:.3f} times (median of {len(ratios)}, from {min(ratios):.2f} to {max(ratios):.2f})",
        ],
        [f"300 MiB allocated for 20 ms, {results['peaks']['pulses']} times", f"{results['peaks']['seen']} seen"],
        [
            f"{steady['windows']} energy windows of 2 s under constant load",
            f"{percent(steady['scatter_frac'], 2)} scatter, {percent(steady['worst_frac'], 2)} at most",
        ],
    ]
    day = read(DAY)
    return [
        *wrap(f"{about(results, 'watch/watch.py')}."),
        "",
        *table(["figure", "result"], rows, 2),
        "",
        *wrap(
            f"{day['hours']} hours at 10 Hz on a simulated clock took {day['run_bytes'] / 1e6:.0f} MB on disk.",
            f"Measured: {about(day, 'watch/watch_day.py')}.",
        ),
    ]
