"""Measured figures of the pages stand in blocks, which are made of the committed results."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import BENCH, ROOT

pytestmark = pytest.mark.skipif(not BENCH.is_dir(), reason="an sdist has no benchmarks")
make_pages = pytest.importorskip("make_pages")

from pages import blocks, rebased  # noqa: E402

UNIT = r"(?:%|×|[nµm]s\b|s\b|[KMGT]i?B\b|m?[JW]\b|k?Hz\b|times\b)"
COUNTED = (
    r"(?:convolutions|shapes|trainings|programs|models|requests|recordings|measurements|operators|kernels|verdicts)"
)
FIGURE = re.compile(rf"(?<![\w.^-])[±+-]?\d[\d,]*(?:\.\d+)?(?: ?{UNIT}|(?: [a-z]+)? {COUNTED}\b)")
"""A number with the unit of something that is measured, or of what was measured."""
NOT_PROSE = re.compile(
    r"<!-- measured: .*?<!-- /measured -->|^(?P<fence>`{3,}).*?^(?P=fence)$|`[^`\n]+`|\]\([^)]*\)|<!--.*?-->",
    re.DOTALL | re.MULTILINE,
)
TYPED = {
    "README.md": ["24 GB"],
    "docs/coming-from/capabilities.md": ["10 ms"],
    "docs/coming-from/ml-operator-profiling.md": ["4.57 ms", "422.57 mJ"],
    "docs/coming-from/mxnet.md": ["1,025.0 MiB", "100 %", "108 %", "384.0 MiB", "65.4 MiB"],
    "docs/coming-from/nvidia-smi.md": ["10 ms", "100 ms", "18.00 s", "180 s", "392 MiB", "47.36 ms", "622 MiB"],
    "docs/coming-from/pytorch-mem-profiler.md": ["31 %"],
    "docs/coming-from/tbd-log.md": ["15.0 MiB", "18.0 MiB"],
    "docs/conv_algorithms.md": ["256×", "2×", "3×", "4×"],
    "docs/diff.md": ["25 %", "95 %"],
    "docs/estimate-simulation.md": ["10 s", "10 times", "100 times", "20 s", "512 MiB", "90 %"],
    "docs/experiments/window.md": ["1.5 s", "100 ms", "30 s"],
    "docs/flight-recorder.md": ["0.1 %", "0.2 %", "0.5 %", "1 KiB", "1 MiB", "2 %", "2.5 ms", "20 ms", "50 ms"],
    "docs/format.md": ["1 MiB", "100 ms", "25 ms", "4 KiB"],
    "docs/groups.md": ["5 %"],
    "docs/jobs/layer-cost.md": ["100 %", "101.81 µs", "46.23 mJ", "90 %"],
    "docs/jobs/out-of-memory.md": ["24 GB"],
    "docs/numbers.md": ["10 %", "2 MiB", "200,000 operators", "3 %", "64 operators", "8 times"],
    "docs/operator-costs.md": ["1.5 s", "10 ms", "20 operators", "20 µs", "3 %", "5 ms", "90 %", "95 %"],
    "docs/plot.md": ["10 ms"],
    "docs/ranks.md": ["1 %", "1 MiB", "1.5 times", "2 %", "4 times", "75 %"],
    "docs/security.md": [
        *("1 GiB", "16 KiB", "192 MiB", "256 KiB", "4 MiB", "512 MiB", "60 s", "64 KiB", "64 MiB", "8 times"),
    ],
    "docs/time_energy.md": ["1 GiB", "100 ms", "±5 %"],
    "docs/trace.md": ["8,000 times"],
    "docs/watch.md": ["10 ms", "100 ms", "20 Hz", "200 ms", "25 ms"],
}
"""Figures that are typed and not measured by us: defaults, limits, rules of other programs, examples of output."""


def typed_figures(page: Path) -> list[str]:
    """Return the figures that a page's prose has outside its blocks and its code."""
    prose = NOT_PROSE.sub(" ", page.read_text(encoding="utf-8"))
    return [found[0].strip() for found in FIGURE.finditer(prose)]


PAGES = blocks.pages()


@pytest.mark.parametrize("page", [*PAGES, *blocks.FILES], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_the_committed_results(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == blocks.wanted_of(page), "run: make pages"


def test_every_block_stands_in_one_page() -> None:
    standing = [name for page in PAGES for name in blocks.names_in(page.read_text(encoding="utf-8"))]
    assert sorted(standing) == sorted(blocks.BLOCKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_figure_outside_the_blocks_is_no_measurement(page: Path) -> None:
    known = TYPED.get(str(page.relative_to(ROOT)), [])
    assert sorted(set(typed_figures(page))) == sorted(known), (
        "a measured figure belongs into a block (tools/pages), any other into TYPED"
    )


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("It is 2.5 % too low, 3× or 1.5 MiB.", ["2.5 %", "3×", "1.5 MiB"]),
        ("<!-- measured: x -->\n2 %\n<!-- /measured -->\nand 4 s", ["4 s"]),
        ("```sh\nrun 10 s\n```\nfor `5 s` and [7 s](a.md)", ["7 s"]),
        ("version 2.11 s and H200 %", ["2.11 s"]),
        ("a table of 22,957 shapes; 36 recorded trainings, 3 tables", ["22,957 shapes", "36 recorded trainings"]),
    ],
)
def test_figures_are_found_in_prose_only(text: str, figures: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert typed_figures(page) == figures


def test_docstrings_have_the_number_of_measured_convolutions() -> None:
    files = json.loads((BENCH / "estimate" / "results" / "h200" / "conv_copies.json").read_text("utf-8"))["files"]
    count = f"{sum(one['convolutions'] for one in files.values()):,}"
    sources = (ROOT / "src" / "gpuledger").rglob("*.py")
    found = [number for one in sources for number in re.findall(r"(\d[\d,]+) convolutions", one.read_text("utf-8"))]
    assert len(found) >= 3
    assert set(found) == {count}


def test_a_block_without_a_function_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no function makes the block 'unknown'"):
        blocks.fill("<!-- measured: unknown -->\n<!-- /measured -->")


def test_what_stands_in_a_block_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- measured: one -->\nold\n<!-- /measured -->\nb\n"
    assert blocks.fill(page, {"one": lambda: ["new", "lines"]}) == page.replace("old", "new\nlines")


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(0, 10, 0.0, 0.30850), (10, 10, 0.69150, 1.0), (30, 36, 0.67188, 0.93627), (1, 2, 0.01258, 0.98742)],
)
def test_the_interval_of_a_share_is_exact(hits: int, count: int, low: float, high: float) -> None:
    """Figures of Clopper and Pearson at 95 %."""
    from pages.blind import interval_of_share

    assert interval_of_share(hits, count, 0.95) == pytest.approx((low, high), abs=1e-4)
    inner = interval_of_share(hits, count, 0.5)
    assert low <= inner[0] <= hits / count <= inner[1] <= high


@pytest.mark.parametrize(("reserved_bytes", "expected"), [(1000, False), (1100, True)])
def test_a_training_is_above_its_stated_bound_by_its_process(reserved_bytes: int, expected: bool) -> None:
    """The bound is of the whole process: a tenth of reserved memory is less than a tenth of the process."""
    from pages.blind import is_above

    from gpuledger.simulate.catalogue import find_card

    outside_bytes = find_card("h200").outside_bytes
    ratio = 1 + 50 / (1000 + outside_bytes)
    one = {"estimate": {"reserved_bytes": 1000, "upper_over_estimate": ratio}, "truth": {}}
    assert is_above({**one, "truth": {"reserved_bytes": reserved_bytes}}) is expected


def test_the_kinds_of_blind_trainings_add_up_to_all() -> None:
    from pages.blind import all_above, coverage_by_kind

    rows = [[word.strip() for word in line.split("|")] for line in coverage_by_kind()[2:]]
    above, count = all_above()
    assert len(rows) == 3
    assert sum(int(row[2]) for row in rows) == count
    assert sum(int(row[3]) for row in rows) == count - above


@pytest.mark.parametrize("has_run", [True, False])
def test_a_blind_set_is_on_the_pages_once_it_ran(has_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from pages import blind, results

    summary = importlib.import_module("pages.summary")

    ran_on = results.read(blind.MIXED)["truth_on"]

    def read(name: str) -> results.Results:
        found = results.read(name)
        if name == blind.VARIED:
            return {"estimated_on": found["estimated_on"], "trainings": found["trainings"]}
        if name != blind.CONVOLUTIONS:
            return found
        shown = {"estimated_on": found["estimated_on"]}
        trainings = {training: {"estimate": one["estimate"]} for training, one in found["trainings"].items()}
        if has_run:
            shown["truth_on"] = ran_on
            for one in trainings.values():
                one["truth"] = {figure: one["estimate"][figure] * 2 for figure in ("allocated_bytes", "reserved_bytes")}
                one["error"] = dict.fromkeys(one["truth"], -0.5)
        return {**shown, "trainings": trainings}

    for module in (blind, summary):
        monkeypatch.setattr(module, "read", read)
    page, table = "\n".join(blind.blind_record()), "\n".join(summary.summary_of_accuracy())
    count = 72 if has_run else 60
    assert ("| sixth | reserved | 12 | 50.00 % | 50.00 % |" in page) is has_run
    assert ("| styled | -50.00 % | -50.00 % | above |" in page) is has_run
    assert f"All {count} trainings that were estimated before they ran" in page
    assert f"Of the {count} trainings that were estimated before they ran" in table


def test_the_kind_of_a_blind_training_is_that_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH / "estimate"))
    blind_kinds = importlib.import_module("blind_kinds")
    from pages.blind import KINDS
    from pages.results import read

    kinds = read(KINDS)["kinds"]
    made = {
        name: blind_kinds.kind_of(make()) for some in blind_kinds.SETS.values() for name, (make, *_) in some.items()
    }
    assert made == {name: kinds[name] for name in made}
    assert {"recurrent", "convolutions"} <= {*made.values()}


def test_estimates_made_again_keep_where_the_programs_ran_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH / "estimate"))
    cpu_tally = importlib.import_module("cpu_tally")
    place = tmp_path / "tally.json"
    ran, found = {"date": "2026-01-01 00:00 UTC", "commit": "0"}, {"first/one": {"difference_frac": 0.0}}
    place.write_text(json.dumps({"environment": ran, "found": found}), encoding="utf-8")
    monkeypatch.setattr(cpu_tally, "load_for_forks", lambda: None)
    monkeypatch.setattr(cpu_tally, "chosen", lambda only: ())
    monkeypatch.setattr("sys.argv", ["cpu_tally.py", "--side", "estimate", "--out", str(place)])
    for _ in range(2):
        cpu_tally.main()
    made = json.loads(place.read_text(encoding="utf-8"))
    assert made["environment_of_tally"] == ran != made["environment"]
    assert made["found"] == found


def commits_in(value: object) -> Iterator[str]:
    """Yield what a result says of commits, wherever it does."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "commit" and isinstance(one, str):
                yield one.partition("+")[0]
            else:
                yield from commits_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from commits_in(one)


def test_results_name_commits_of_the_history() -> None:
    """Anyone can check out what was measured, or the commit with which a result came into the history."""
    asked = subprocess.run(["git", "-C", str(ROOT), "rev-list", "HEAD"], capture_output=True, text=True, check=False)
    history = asked.stdout.split()
    if asked.returncode or (ROOT / ".git" / "shallow").exists():
        pytest.skip("needs the whole history")
    named: dict[str, list[str]] = defaultdict(list)
    for place in sorted(BENCH.glob("*/results/*/*.json")):
        for commit in commits_in(json.loads(place.read_text(encoding="utf-8"))):
            named[commit].append(place.name)
    lost = {commit: files for commit, files in named.items() if not _is_in(history, commit)}
    assert sorted(lost) == sorted(rebased.REBASED), (
        f"measure with BENCH_COMMIT=<a commit of main>, or name the commit in tools/pages/rebased.py: {lost}"
    )
    assert all(_is_in(history, commit) for commit in rebased.REBASED.values())


def _is_in(history: list[str], commit: str) -> bool:
    return any(one.startswith(commit) for one in history)
