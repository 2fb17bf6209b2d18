"""Makes the blocks of docs/conv_algorithms.md, and its pictures, from what bench/memory/conv_algorithms.py wrote.

Every figure of the page, and every word that depends on one, is made here; ``make pages`` writes the page. This command
draws and compares the runs that the bench's ``--watch`` left, by gpuledger itself, and draws the bench's time log.

Usage: python tools/make_conv_doc.py DIRECTORY_OF_WATCHED_RUNS
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pages.blocks import Maker

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "conv_algorithms.md"
RESULTS = ROOT / "bench" / "memory" / "results" / "h200" / "conv_algorithms.json"
FIRST_LOGS = ROOT / "tests" / "data"
"""Logs of the first experiment, as its authors published them."""
TIME_LOG = RESULTS.with_suffix(".log")
COMPARED = RESULTS.with_name("conv_algorithms_watched.md")
WATCHED = ("cudnn", "direct", "im2col", "fft", "winograd")
MEMORY_PICTURE, LAYERS_PICTURE = "conv_algorithms.png", "conv_algorithms_layers.png"
PICTURES = {
    MEMORY_PICTURE: "Used memory over time: five lines, one for each algorithm",
    LAYERS_PICTURE: "Time of each layer, a line for each algorithm",
}
UNMEASURED = ["Not measured yet: `python bench/memory/conv_algorithms.py` does it."]
MIB, GIB = 2**20, 2**30
LINE_HOLDS_FRAC = 0.02
"""A straight line describes the bytes when no residual is larger than this share of the largest value."""

LAYER_KEYS = ("conv_ms", "overhead_ms", "taken_bytes")

CONSTANT_BELOW = 1.05
"""A peak is called constant when it grows by less from the smallest to the largest fitted batch."""
OWN_FROM_FRAC = 0.4
"""From such a share of an implementation's bytes on, the algorithm itself needed them."""
WIDTH = 120

Row = dict[str, Any]


def label(row: Row) -> str:
    """Return how an algorithm and mode are called on the page."""
    return row["algorithm"] if row["mode"] == "batched" else f"{row['algorithm']} looping"


def case(row: Row, batch: int) -> Row:
    """Return one batch of one algorithm and mode."""
    found: Row = next(case for case in row["cases"] if case["batch"] == batch)
    return found


def find(results: Row, algorithm: str, mode: str = "batched") -> Row:
    """Return one algorithm and mode."""
    found: Row = next(row for row in results["algorithms"] if (row["algorithm"], row["mode"]) == (algorithm, mode))
    return found


def mib(count_bytes: float) -> str:
    """Return bytes as MiB with a thousands separator, without the unit."""
    return f"{count_bytes / MIB:,.0f}"


def ms(value_ms: float) -> str:
    """Return milliseconds with three digits, without the unit."""
    return f"{value_ms:.2f}" if value_ms < 10 else f"{value_ms:.1f}" if value_ms < 100 else f"{value_ms:,.0f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table; all columns but the first are right-aligned."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def wrap(text: str) -> list[str]:
    """Return a paragraph, or a point of a list, in lines."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def picture(name: str) -> list[str]:
    """Return a picture that is there."""
    return [f"![{PICTURES[name]}]({name})"] if (PAGE.parent / name).exists() else ["No picture yet."]


def compared() -> list[str]:
    """Return the table of the watched runs, if there are any."""
    return ["", *COMPARED.read_text(encoding="utf-8").splitlines()] if COMPARED.exists() else []


def take_watched(directory: Path) -> None:
    """Draw and compare the runs in ``directory``, and draw the batched algorithms' times of each layer."""
    runs = [str(place) for name in WATCHED if (place := directory / f"{name}.ledger").exists()]
    if not runs:
        raise SystemExit(f"{directory}: none of {', '.join(f'{name}.ledger' for name in WATCHED)}")
    COMPARED.write_text(gpuledger("compare", "--markdown", *runs), encoding="utf-8")
    title = ["--title", "VGG-19's forward, again and again, by convolution algorithm"]
    gpuledger("plot", *runs, "--align", "first-use", *title, "--force", "-o", str(PAGE.parent / MEMORY_PICTURE))
    with tempfile.TemporaryDirectory() as temporary:
        batched = Path(temporary) / "VGG-19.txt"
        lines = TIME_LOG.read_text(encoding="utf-8").splitlines(keepends=True)
        batched.write_text("".join(line for line in lines if "-LOOP," not in line), encoding="utf-8")
        gpuledger("plot", str(batched), "--kind", "layers", "--force", "-o", str(PAGE.parent / LAYERS_PICTURE))


def gpuledger(*words: str) -> str:
    """Return what a command of gpuledger prints."""
    return subprocess.run(
        [sys.executable, "-m", "gpuledger", *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def about(results: Row) -> str:
    """Return what was measured on, in one line."""
    told = results["environment"]
    return (
        f"{told['card']}, driver {told['driver']}, torch {told['versions']['torch']}, cuDNN {told['cudnn']}, "
        f"{told['date'][:10]}, `bench/memory/conv_algorithms.py`."
    )


def times(results: Row) -> list[str]:
    """Return the table of times summed over the sixteen convolutions."""
    batches = results["batches"]
    head = [
        "ms, sixteen convolutions",
        *(f"batch {batch}" for batch in batches),
        f"of it OVERHEAD, batch {batches[-1]}",
    ]
    rows = []
    for row in results["algorithms"]:
        last = case(row, batches[-1])
        totals = [ms(case(row, batch)["total_ms"]) for batch in batches]
        rows.append([label(row), *totals, f"{last['overhead_ms'] / last['total_ms']:.0%}"])
    return [about(results), "", *table(head, rows)]


def memory(results: Row) -> list[str]:
    """Return the table of bytes with their straight lines."""
    batches, held_out = results["batches"], results["held_out"]
    head = ["MiB at the peak", *(f"batch {batch}" for batch in batches)]
    head += ["MiB per image", "constant", "largest residual", f"batch {held_out}, from the line", "measured"]
    rows = []
    for row in results["algorithms"]:
        line = row["fit"]["peak_bytes"]
        fitted = [f"{line[key]:,.1f}" for key in ("mib_per_image", "constant_mib", "largest_residual_mib")]
        held = [f"{line[key]:,.0f}" for key in ("held_out_predicted_mib", "held_out_mib")]
        rows.append([label(row), *(mib(case(row, batch)["peak_bytes"]) for batch in batches), *fitted, *held])
    span = f"{batches[0]} to {batches[-1]}"
    return [
        *wrap(
            f"Weights are {mib(results['weights_bytes'])} MiB of each figure. The line is the least-squares line over "
            f"batches {span}; batch {held_out} had no part in it."
        ),
        "",
        *table(head, rows),
        "",
        "Memory of the layer that needs most, with its output:",
        "",
        *taken(results),
    ]


def taken(results: Row) -> list[str]:
    """Return the table of what a layer takes at most."""
    batches = [*results["batches"], results["held_out"]]
    rows = [
        [
            label(row),
            *(mib(case(row, batch)["taken_bytes"]) for batch in batches),
            f"{row['fit']['taken_bytes']['mib_per_image']:,.1f}",
        ]
        for row in results["algorithms"]
    ]
    return table(["MiB of the layer", *(f"batch {batch}" for batch in batches), "MiB per image"], rows)


def findings(results: Row) -> list[str]:
    """Return what the figures say, a paragraph for each question."""
    return [
        *wrap(exactness(results)),
        "",
        *wrap("**Linear or constant?** " + growth(results)),
        "",
        *(line for row in results["algorithms"] for line in wrap(describe_growth(results, row))),
        "",
        *wrap("**Does their memory forbid batching?** " + batching(results)),
        "",
        *(line for name in ("fft", "winograd", "im2col") for line in wrap(describe_batching(results, name))),
        "",
        "### Compared with the first experiment",
        "",
        *first_experiment(results),
    ]


def exactness(results: Row) -> str:
    """Return how far the outputs are from the library's."""
    cases = [(label(row), one) for row in results["algorithms"] for one in row["cases"]]
    name, worst = max(cases, key=lambda pair: float(pair[1]["largest_difference"]))
    missed = sorted({name for name, one in cases if not one["within_tolerance"]})
    verdict = f"not within {results['tolerance']:g}: {', '.join(missed)}" if missed else "all within"
    return (
        f"**Results are equal.** The largest absolute difference of a layer's output from cuDNN's "
        f"is {worst['largest_difference']:.1e} ({name}, batch {worst['batch']}), limit "
        f"{results['tolerance']:g}: {verdict}."
    )


def is_straight(results: Row, row: Row) -> bool:
    """Return whether the line over the fitted batches describes their peaks."""
    largest_mib = case(row, results["batches"][-1])["peak_bytes"] / MIB
    return bool(row["fit"]["peak_bytes"]["largest_residual_mib"] <= LINE_HOLDS_FRAC * largest_mib)


def growth(results: Row) -> str:
    """Return which peaks are constant over the batch and which grow."""
    batches, rows = results["batches"], results["algorithms"]
    straight = [row for row in rows if is_straight(results, row)]
    grown = {label(row): case(row, batches[-1])["peak_bytes"] / case(row, batches[0])["peak_bytes"] for row in rows}
    constant = [f"{name} (× {grew:.2f})" for name, grew in grown.items() if grew < CONSTANT_BELOW]
    growing = [f"{name} (× {grew:.2f})" for name, grew in grown.items() if grew >= CONSTANT_BELOW]
    return (
        f"Between batch {batches[0]} and batch {batches[-1]}, {len(straight)} of the {len(rows)} peaks follow a "
        f"straight line to within {LINE_HOLDS_FRAC:.0%}. Nearly constant: {', '.join(constant) or 'none'}. "
        f"Growing: {', '.join(growing) or 'none'}. Activations grow with the batch in every algorithm. Spectra and "
        "transforms of filters do not. Columns and tiles do, unless images are convolved one after another."
    )


def describe_growth(results: Row, row: Row) -> str:
    """Return one algorithm's line, and whether it still holds at the batch held out."""
    line, held_out = row["fit"]["peak_bytes"], results["held_out"]
    off_frac = line["held_out_mib"] / line["held_out_predicted_mib"] - 1
    holds = abs(off_frac) <= 2 * LINE_HOLDS_FRAC
    layers = [peak_layer(case(row, batch)) for batch in (results["batches"][0], held_out)]
    where = (
        f"the peak is in {layers[0]}" if layers[0] == layers[1] else f"the peak moves from {layers[0]} to {layers[1]}"
    )
    verdict = f"still holds at batch {held_out}" if holds else f"is off by {off_frac:+.0%} at batch {held_out}"
    shape = "" if is_straight(results, row) else "no straight line, best "
    return (
        f"- {label(row)}: {shape}{line['constant_mib']:,.0f} MiB + {line['mib_per_image']:,.1f} MiB per image, "
        f"which {verdict}; {where}."
    )


def peak_layer(one: Row) -> str:
    """Return the name of the convolution with the highest peak."""
    peaks = one["layers"]["peak_bytes"]
    return str(one["layers"]["layer"][peaks.index(max(peaks))])


def batching(results: Row) -> str:
    """Return whether a whole batch of the largest size fits, by measurement."""
    held_out, capacity = results["held_out"], results["capacity_bytes"]
    peaks = {name: case(find(results, name), held_out)["peak_bytes"] for name in ("fft", "winograd")}
    largest = max(peaks.values())
    verdict = "No, not on this GPU" if largest < capacity / 2 else "It fits this GPU, narrowly"
    told = " and ".join(f"{name} {count / GIB:.1f} GiB" for name, count in peaks.items())
    return (
        f"{verdict}: {held_out} images convolved at once need {told} at the peak, at most "
        f"{largest / capacity:.0%} of its {capacity / GIB:.0f} GiB."
    )


def describe_batching(results: Row, algorithm: str) -> str:
    """Return what looping saves and costs, at the largest fitted batch."""
    batch = results["batches"][-1]
    whole, loop = (case(find(results, algorithm, mode), batch) for mode in ("batched", "loop"))
    saved = whole["peak_bytes"] - loop["peak_bytes"]
    ratio = loop["total_ms"] / whole["total_ms"]
    takes = f"needs {ratio:.2f} times the time"
    return f"- {algorithm}, batch {batch}: looping {takes} and saves {mib(saved)} of {mib(whole['peak_bytes'])} MiB."


def first_experiment(results: Row) -> list[str]:
    """Return the first experiment's figures beside these, from its own logs."""
    batches = [results["batches"][0], results["batches"][-1]]
    head = ["", *(f"old ms, batch {batch}" for batch in batches), *(f"new ms, batch {batch}" for batch in batches)]
    head += ["old peak MiB, batch 1", f"new, batch {batches[0]}"]
    rows = []
    for name in dict.fromkeys(row["algorithm"] for row in results["algorithms"]):
        here = [case(find(results, name), batch) for batch in batches]
        then = [ms(first_total_ms(name, batch)) for batch in batches]
        then_mib = f"{first_peak_mib(name):,}"
        rows.append([name, *then, *(ms(one["total_ms"]) for one in here), then_mib, mib(here[0]["peak_bytes"])])
    told = (
        "The old figures are from published logs of another GPU, with FFT and Winograd looping over the batch. Their "
        "memory is that of the whole GPU above the first sample. The new figures are from the tables above, without "
        f"context and libraries. {blame(results)}"
    )
    return [*wrap(told), "", *table(head, rows)]


def blame(results: Row) -> str:
    """Return whose the first experiment's bytes were, the algorithm's or its implementation's."""
    words = []
    for name, title in (("fft", "FFT"), ("winograd", "Winograd")):
        frac = case(find(results, name), results["batches"][0])["peak_bytes"] / MIB / first_peak_mib(name)
        cause = "mostly of the implementation" if frac < OWN_FROM_FRAC else "of the algorithm itself"
        words.append(f"{title} needs {frac:.0%} of its old memory, which was {cause}.")
    return " ".join(words)


def first_peak_mib(name: str) -> int:
    """Return the highest reading above the first one of the first experiment's log of one algorithm."""
    lines = (FIRST_LOGS / "nvidia_smi" / f"memory_{name}.txt").read_text(encoding="utf-8").splitlines()[1:]
    readings = [int(line.split()[0]) for line in lines if line.strip()]
    return max(readings) - readings[0]


def first_total_ms(name: str, batch: int) -> float:
    """Return the first experiment's time summed over the convolutions, the mean of its repetitions."""
    lines = (FIRST_LOGS / "time_log" / "logVGG.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.rstrip(", ").split(", ") for line in lines]
    sums = [sum(map(float, row[3:])) for row in rows if row[:3] == [name.upper(), str(batch), "TOTAL"]]
    return statistics.fmean(sums)


def layers(results: Row) -> list[str]:
    """Return, for each batch, times and bytes of each layer."""
    text = [
        "Milliseconds as CONV + OVERHEAD (TOTAL is their sum), then the MiB of the layer with its output.",
        "",
    ]
    for batch in results["batches"]:
        first = batch == results["batches"][0]
        text += [f"### Batch {batch}", ""] if first else [f"<details><summary>Batch {batch}</summary>", ""]
        text += [*layer_table(results, batch), "", *([] if first else ["</details>", ""])]
    return text[:-1]


def layer_table(results: Row, batch: int) -> list[str]:
    """Return one batch's table: a row a layer, a column an algorithm and mode that differs at this batch."""
    shown = [row for row in results["algorithms"] if row["mode"] == "batched" or batch > 1]
    columns = [case(row, batch)["layers"] for row in shown]
    names = columns[0]["layer"]
    rows = [[name, *(layer_cell(column, number) for column in columns)] for number, name in enumerate(names)]
    return table(["layer", *map(label, shown)], rows)


def layer_cell(column: Row, number: int) -> str:
    """Return one layer's times and bytes under one algorithm."""
    conv_ms, overhead_ms, taken_bytes = (column[key][number] for key in LAYER_KEYS)
    return f"{ms(conv_ms)} + {ms(overhead_ms)}, {mib(taken_bytes)}"


MAKERS = {"times": times, "memory": memory, "findings": findings, "layers": layers}
SECTIONS = ("picture", "layers picture", *MAKERS)


def section(name: str, results: Row | None) -> list[str]:
    """Return the lines of one section of the page."""
    failed = [
        f"{label(row)}: {row['error']}" for row in (results or {"algorithms": []})["algorithms"] if "error" in row
    ]
    if failed:
        raise SystemExit(f"{RESULTS}: incomplete: {'; '.join(failed)}")
    if name == "picture":
        return [*picture(MEMORY_PICTURE), *compared()]
    if name == "layers picture":
        return picture(LAYERS_PICTURE)
    return MAKERS[name](results) if results else UNMEASURED


def makers(results: Row | None) -> dict[str, Maker]:
    """Return what makes each block of the page."""
    return {f"convolutions, {name}": partial(section, name, results) for name in SECTIONS}


def committed() -> Row | None:
    """Return the committed results, if there are any."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else None


def main() -> int:
    """Draw and compare watched runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("watched", type=Path, metavar="DIRECTORY")
    take_watched(parser.parse_args().watched)
    return 0


if __name__ == "__main__":
    sys.exit(main())
