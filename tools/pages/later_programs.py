"""Programs that had run before they were estimated, by a commit from before they were written."""

from __future__ import annotations

from pages.blocks import block
from pages.estimates import RESULTS
from pages.results import errors_in_words, read, table, wrap

LATER = RESULTS + "blind_programs_later.json"


@block("programs with libraries and threads")
def programs_with_libraries_and_threads() -> list[str]:
    """Return the errors of these programs, and how often the upper bound that was printed holds."""
    results = read(LATER)
    rows, errors, above = [], {"allocated": list[float](), "reserved": list[float]()}, 0
    for name, one in sorted(results["programs"].items()):
        estimate, truth = one["estimate"], one["truth"]
        outside_bytes = estimate["peak_process_bytes"] - estimate["peak_reserved_bytes"]
        is_above = truth["peak_reserved_bytes"] + outside_bytes > estimate["upper_bytes"]
        above += is_above
        found = {kind: estimate[f"peak_{kind}_bytes"] / truth[f"peak_{kind}_bytes"] - 1 for kind in errors}
        for kind, error in found.items():
            errors[kind].append(abs(error))
        signed = (f"{error:+.2%}".replace("%", " %") for error in found.values())
        rows.append([name.replace("_", "-"), *signed, f"{'above' if is_above else 'below'} the bound"])
    said = errors_in_words(errors)
    missing = {key: ", ".join(name.replace("_", "-") for name in results[key]) for key in ("no_estimate", "no_truth")}
    first = next(iter(results["programs"].values()))
    return [
        *wrap(
            f"{len(rows)} more programs, many of them with libraries or threads, ran first and were then estimated by",
            f"commit {first['commit'][:7]}, from before they were written. {' '.join(said)}",
            f"Of {len(rows)} measurements, {len(rows) - above} are below the upper bound that was printed, as the last",
            f"column says. Without an estimate are {missing['no_estimate']}. Not in the table are",
            f"{missing['no_truth']}, which did not end on the GPU. Several causes were mended since then, with these",
            "programs in sight. Peaks of programs with several threads differ from run to run. Measured: NVIDIA H200,",
            f"torch 2.11.0, {first['measured']}, `bench/estimate/blind_programs.py`.",
        ),
        "",
        *table(["program", "allocated", "reserved", "measured"], rows),
    ]
