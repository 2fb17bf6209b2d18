"""The page's own scripts and the vendored ones: sound, complete, and agreeing with Python."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gpuledger.report.base.phrases import rate, share
from gpuledger.report.html.report_page import VENDORED_SCRIPTS, VENDORED_STYLES, asset, markup, script_files
from gpuledger.units import format_bytes, format_joules, format_ns, parse_bytes

ASSETS = Path(str(files("gpuledger.report"))) / "assets"
VENDOR = ASSETS / "vendor"
SCRIPTS = tuple(file.name for file in script_files())
PACKAGES: list[dict[str, Any]] = tomllib.loads((VENDOR / "VENDOR.toml").read_text(encoding="utf-8"))["package"]


@pytest.fixture(scope="module")
def node() -> str:
    """Return Node.js: the machine's, else the one that playwright brings along."""
    found = shutil.which("node")
    if found is None:
        import playwright

        found = str(Path(playwright.__file__).parent / "driver" / "node")
    return found


def evaluate(node: str, script: str) -> Any:
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_vendored_files_are_the_described_ones() -> None:
    described = {name: entry["sha256"] for package in PACKAGES for name, entry in package["files"].items()}
    present = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    present.pop("VENDOR.toml")
    assert present == described
    assert {*VENDORED_SCRIPTS, *VENDORED_SCRIPTS.values(), *VENDORED_STYLES} == set(described)


def test_every_vendored_package_says_where_it_is_from() -> None:
    for package in PACKAGES:
        assert package["version"] in package["source"]
        assert package["sha512"].startswith("sha512-")
        assert package["licence"] in ("MIT", "ISC")


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_is_sound_on_its_own(node: str, name: str) -> None:
    done = subprocess.run([node, "--check", str(ASSETS / "js" / name)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_every_script_is_in_the_page() -> None:
    assert sorted(SCRIPTS) == sorted(path.name for path in (ASSETS / "js").iterdir())


def test_no_script_makes_markup_or_code_from_text() -> None:
    for name in SCRIPTS:
        found = re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\bfetch\(|XMLHttpRequest",
            asset(f"js/{name}"),
        )
        assert found is None, f"{name}: {found}"


def test_every_element_asked_for_is_in_the_page() -> None:
    page = set(re.findall(r'\bid="([^"]+)"', asset("page.html") + markup()))
    code = "".join(asset(f"js/{name}") for name in SCRIPTS)
    asked = set(re.findall(r'\b(?:byId|on|getElementById)\("([^"]+)"', code))
    assert asked <= page


def test_no_script_ends_its_element() -> None:
    for name in VENDORED_SCRIPTS:
        assert "</script" not in asset(f"vendor/{name}").lower()
    assert "</script" not in "".join(asset(f"js/{name}") for name in SCRIPTS).lower()


def edges(units: list[int]) -> list[int]:
    values = {0, 1, 999, 1000, 1023, 1280, 1_048_524, 1_048_525, 119_994_999_999, 119_995_000_000, 7_199_999_999_999}
    for unit in units:
        for tenths in (1, 5, 10, 12, 15, 25, 99, 125, 9_994, 9_995, 9_999, 10_239, 10_240):
            values |= {unit * tenths // 10 + offset for offset in (-1, 0, 1)}
    return sorted(value for value in values if 0 <= value < 2**53)


def test_units_read_the_same_in_the_terminal_and_on_the_page(node: str) -> None:
    sizes = edges([1024**power for power in range(6)])
    times = edges([10**power for power in range(14)])
    numbers = [*sizes, *(-size for size in sizes if size)]
    joules = [0, 2.4e-5, 0.0004, 0.0009999951, 0.99999, 1, 251.3, 999.994, 1000, 3200, 999_999, 1_000_000, 5e9, -3.5]
    script = f"""{asset("js/format.js")}
    const sizes = {json.dumps(numbers)}, times = {json.dumps(times)}, joules = {json.dumps(joules)};
    console.log(JSON.stringify([sizes.map(formatBytes), times.map(formatNs), sizes.map((one) => formatShare(one, 4096)),
      joules.map((one) => formatJoules(one)), joules.map(formatRate),
      [formatBytes(null), formatNs(null), formatJoules(null)]]));"""
    shown_sizes, shown_times, shares, shown_joules, rates, missing = evaluate(node, script)
    assert rates[:-1] == [rate(value) for value in joules[:-1]]
    assert shown_joules == [format_joules(value) for value in joules]
    assert shown_sizes == [format_bytes(value) for value in numbers]
    assert shown_times == [format_ns(value) for value in times]
    assert shares == [share(value, 4096) for value in numbers]
    assert missing == [format_bytes(None), format_ns(None), format_joules(None)]


def test_uncertainties_read_the_same_in_the_terminal_and_on_the_page(node: str) -> None:
    pairs = [(1.6, 0.00666), (100, 2), (0, 0), (753.81, 3.14), (2e3, 1), (1e-3, 0.5), (5, 1e-12), (3.5, 0.001)]
    script = f"""{asset("js/format.js")}
    const pairs = {json.dumps(pairs)};
    console.log(JSON.stringify(pairs.flatMap((one) => [formatJoules(...one), formatUncertainty(...one)])));"""
    shown = evaluate(node, script)
    assert shown[::2] == [format_joules(*pair) for pair in pairs]
    assert shown[1::2] == [text[text.index("±") :] for text in shown[::2]]


def test_labels_of_an_axis_are_exact(node: str) -> None:
    """Rounded labels of 1.25 s and 3.75 s, or of 512,000 bytes in MiB, would be wrong by up to a fifth."""
    script = f"""{asset("js/format.js")}{asset("js/timeline.js")}
    const ticks = (step) => [0, 1, 2, 3].map((number) => number * step);
    const sizes = byteIncrements();
    console.log(JSON.stringify([sizes.map((step) => String(BigInt(step))), sizes.map((step) => byteLabels(ticks(step))),
      [1.25, 2.5, 0.002, 25e-9].map((step) => timeLabels(ticks(step)))]));"""
    increments, sizes, times = evaluate(node, script)
    for step, labels in zip(increments, sizes, strict=True):
        step = int(step)
        assert [parse_bytes(label) if label != "0" else 0 for label in labels] == [step * number for number in range(4)]
    assert times == [
        ["0.00 s", "1.25 s", "2.50 s", "3.75 s"],
        ["0.0 s", "2.5 s", "5.0 s", "7.5 s"],
        ["0 ms", "2 ms", "4 ms", "6 ms"],
        ["0.000 µs", "0.025 µs", "0.050 µs", "0.075 µs"],
    ]


def test_copies_keep_their_columns_whatever_the_names(node: str) -> None:
    table = {"heads": ["Module", "Bytes"], "cells": [["a|b", "1"], ['say "x", y\nz', "2"], ["=cmd()", "-3"]]}
    script = (
        f"{asset('js/rows.js')}\nconst t = {json.dumps(table)}; console.log(JSON.stringify([toCsv(t), toMarkdown(t)]));"
    )
    csv, markdown = evaluate(node, script)
    assert csv == 'Module,Bytes\r\na|b,1\r\n"say ""x"", y\nz",2\r\n\'=cmd(),-3'
    assert markdown.splitlines()[2] == "| a\\|b | 1 |"


def test_the_state_survives_the_address(node: str) -> None:
    state = {"q": "h.3 </script>&=#", "zoom": "12,34", "theme": "dark", "at": "end"}
    script = f"""{asset("js/state.js")}
    const state = {{ ...DEFAULT_STATE, ...{json.dumps(state)} }};
    const bogus = parseState("#bogus=1&at=5");
    console.log(JSON.stringify([parseState(formatState(state)), formatState(parseState("")), bogus]));"""
    there_and_back, empty, bogus = evaluate(node, script)
    assert {key: there_and_back[key] for key in state} == state
    assert empty == "#"
    assert bogus["at"] == "5"
    assert "bogus" not in bogus


def test_layers_fold_by_number(node: str) -> None:
    paths = ["h.0.mlp", "h.11", "3.4.x", "conv2.b1", "layers"]
    script = f"{asset('js/ledger.js')}\nconsole.log(JSON.stringify({json.dumps(paths)}.map(foldPath)));"
    assert evaluate(node, script) == ["h.*.mlp", "h.*", "*.*.x", "conv2.b1", "layers"]


def test_names_that_hide_are_made_visible(node: str) -> None:
    names = ["a\u0000b", "x\u202ey", "tab\there", "plain", "🔥"]
    script = f"{asset('js/format.js')}\nconsole.log(JSON.stringify({json.dumps(names)}.map(printable)));"
    assert evaluate(node, script) == ["a␀b", "x\\u202ey", "tab␉here", "plain", "🔥"]
