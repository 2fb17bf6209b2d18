"""Opens exported snapshots in PyTorch's own memory viewer, in a headless browser, and checks what it shows.

The page is the one that `torch.cuda._memory_viz.trace_plot` would write, around what `gpuledger export` wrote. Each
view is chosen on each device. There must be no error; each timeline draws every allocation of the trace to the peak
that the trace has; every block tells its category, module, scope and tensor under the pointer; and at moments of the
allocator's history the viewer counts the bytes allocated and reserved that the trace has then.

The viewer comes from where torch's page says. On a machine without a network, `--viewer FILE` takes a copy (what it
imports lies beside it), and `--modules DIR` the node_modules of `npm install d3@N`, N as the viewer asks.

Usage: python bench/report/snapshot_viewer.py [RUN…] [--viewer MemoryViz.js --modules node_modules]
       [--out bench/report/results/cpu/snapshot_viewer.json] [--screenshots DIR]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlparse

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from playwright.sync_api import Browser, Page, Request, Route, sync_playwright
from torch import nn
from torch.cuda import _memory_viz

import gpuledger

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "recordings"
PAGE = "http://snapshot.invalid/"
MODULES = "http://modules.invalid/"
LIBRARY = re.compile(r"(?:npm/|skypack\.dev/)(d3(?:-[a-z]+)?)@(\d+)")
CLICKED = 7
"""Moments of the history that are looked at."""
MOST_DRAWN = 15_000
"""Blocks that the viewer draws one by one: the largest."""
GRID = (24, 16)
"""Places of a timeline that the pointer goes to, across and down."""
TIMELINES = ("Timeline", "Allocated Memory")
SHOWN = """const shown = [...document.querySelectorAll('body > div')].filter(
    (one) => getComputedStyle(one).display !== 'none' && one.querySelector('svg, pre'))[0];
  const chart = shown.querySelector('svg'), text = shown.querySelector('pre');"""
DRAWN = f"""() => {{
  {SHOWN}
  const data = [...chart.querySelectorAll('polygon')].map((one) => one.__data__);
  const tops = data.flatMap((one) => one.offsets.map(
    (offset, place) => offset + (Array.isArray(one.size) ? one.size[place] ?? 0 : one.size)));
  return {{blocks: data.filter((one) => typeof one.elem === 'number').length,
    peak_bytes: tops.reduce((most, top) => Math.max(most, top), 0),
    categories: [...[...chart.children].at(-1).querySelectorAll('text')].map((one) => one.textContent)}};
}}"""
TOLD = f"""() => {{
  {SHOWN}
  return [...chart.querySelectorAll('polygon')].map((one) => {{
    one.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}));
    return text.textContent;
  }});
}}"""
TEXT = f"() => {{ {SHOWN} return text.textContent; }}"
HISTORY = f"""(places) => {{
  {SHOWN}
  const [stack, , list] = shown.firstChild.children;
  const tell = (kind, one) => {{
    one.dispatchEvent(new MouseEvent(kind, {{bubbles: true}}));
    return stack.textContent;
  }};
  const told = places.map((place) => tell('mousedown', list.children[place]));
  return {{events: list.children.length, told,
    blocks: [...chart.querySelectorAll('g > g:nth-child(2) > rect')].map((one) => tell('mouseover', one))}};
}}"""
COUNTED = re.compile(r"\((\d+) bytes\) allocated / .*?\((\d+) bytes\) reserved")


@dataclass
class Exported:
    """A snapshot on disk, and what it holds."""

    name: str
    path: Path
    snapshot: dict[str, Any]


@dataclass
class Checked:
    """What the viewer made of one snapshot."""

    views: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def export(name: str, run: Path, directory: Path) -> Exported:
    """Export a run with the command that a user would type."""
    path = directory / f"{name}.pickle"
    command = [sys.executable, "-m", "gpuledger", "export", str(run), "--to", "torch-snapshot", "-o", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Exported(name, path, pickle.loads(path.read_bytes()))


class _Net(nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(256, 512), nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.last(torch.relu(self.first(x)))).square().mean()


def record_small(directory: Path) -> Path:
    """Record three steps of a small training on the CPU, or on the GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    run = directory / "recorded.ledger"
    with gpuledger.record(out=run):
        for _ in range(3):
            optimizer.zero_grad()
            with gpuledger.scope("whole model"):
                loss = model(torch.randn(32, 256, device=device))
            loss.backward()
            optimizer.step()
    return run


def recordings_of_a_card(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the recordings of the tests, each as a run."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from card_recordings import RECORDED, post_recording

    for name in RECORDED:
        rank = post_recording(name, directory)
        run = rank.directory.parent
        started = {"schema_version": rank.manifest.schema_version, "name": name, "command": [], "status": "complete"}
        (run / "manifest.json").write_text(json.dumps({**started, "started_ns": 0, "settings": {}, "notes": []}))
        yield name, run


# -- the page ---------------------------------------------------------------------------------------------------------


def page_of(snapshot: bytes, view: str, modules: Path | None) -> str:
    """Return torch's page around a snapshot's bytes."""
    padded = snapshot + b"\\0" * (3 - len(snapshot) % 3)
    files = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(padded).decode()}])
    page = _memory_viz._memory_viz_template.replace("$VIZ_KIND", repr(view)).replace("$SNAPSHOT", files)
    imports = {} if modules is None else {one.name: _entry(one) for one in sorted(modules.iterdir()) if _is_module(one)}
    return page.replace("<head>", f'<head><script type="importmap">{json.dumps({"imports": imports})}</script>')


def _is_module(place: Path) -> bool:
    return (place / "package.json").is_file()


def _entry(module: Path) -> str:
    """Return the address of what a package exports as a module."""
    told = json.loads((module / "package.json").read_text())
    exports = told.get("exports", {})
    entry = exports.get("default") if isinstance(exports, dict) else exports
    if not isinstance(entry, str):
        entry = told.get("module") or told.get("main", "index")
    path = entry.removeprefix("./")
    return f"{MODULES}{module.name}/{path if path.endswith(('.js', '.mjs')) else path + '.js'}"


@dataclass
class Server:
    """Answers what the page asks for, from files where they were given."""

    viewer: Path | None
    modules: Path | None
    page: str = ""
    sha256: dict[str, str] = field(default_factory=dict)

    def answer(self, route: Route, request: Request) -> None:
        """Fulfil one request."""
        url = request.url
        library = LIBRARY.search(url)
        if url.startswith(PAGE):
            self._give(route, self.page if url == PAGE else "", "text/html")
        elif url.startswith(MODULES) and self.modules is not None:
            self._give(route, (self.modules / url.removeprefix(MODULES)).read_bytes())
        elif library and self.modules is not None:
            self._give(route, self._library(*library.groups()))
        elif self.viewer is not None:
            self._give(route, self._noted(Path(urlparse(url).path).name))
        else:
            response = route.fetch()
            if url.endswith(".js"):
                self.sha256[Path(urlparse(url).path).name] = hashlib.sha256(response.body()).hexdigest()
            route.fulfill(response=response)

    def _library(self, name: str, major: str) -> str:
        assert self.modules is not None
        version = json.loads((self.modules / name / "package.json").read_text())["version"]
        if version.partition(".")[0] != major:
            raise SystemExit(f"snapshot_viewer: the viewer asks for {name}@{major}, {self.modules} has {version}")
        return f'export * from "{name}"'

    def _noted(self, name: str) -> bytes:
        assert self.viewer is not None
        content = self.viewer.with_name(name).read_bytes()
        self.sha256[name] = hashlib.sha256(content).hexdigest()
        return content

    def _give(self, route: Route, body: str | bytes, kind: str = "text/javascript") -> None:
        route.fulfill(body=body, content_type=f"{kind}; charset=utf-8", headers={"Access-Control-Allow-Origin": "*"})


# -- what must be shown -----------------------------------------------------------------------------------------------


def as_listed(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events as the viewer lists them: a free that is requested and completed at once is one."""
    listed: list[dict[str, Any]] = []
    for event in trace:
        if event["action"] == "free_completed" and listed:
            before = listed[-1]
            if before["action"] == "free_requested" and before["addr"] == event["addr"]:
                listed[-1] = {**before, "action": "free"}
                continue
        listed.append(event)
    return listed


ALLOCATED = {"alloc": 1, "free": -1, "free_completed": -1}
RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def running_bytes(listed: list[dict[str, Any]], signs: dict[str, int]) -> list[int]:
    """Return the bytes after each event."""
    found, total = [], 0
    for event in listed:
        total += signs.get(event["action"], 0) * event["size"]
        found.append(total)
    return found


def check_timeline(page: Page, trace: list[dict[str, Any]], held: list[dict[str, Any]], view: str) -> dict[str, Any]:
    """Return what a timeline draws; ``problem`` where that is not what the trace has."""
    drawn: dict[str, Any] = page.evaluate(DRAWN)
    signs = {"segment_alloc": 1, "segment_free": -1} if "Segment" in view else ALLOCATED
    before = [one["total_size"] for one in held if one["is_expandable"]] if "Segment" in view else []
    count = min(sum(signs.get(event["action"]) == 1 for event in trace) + len(before), MOST_DRAWN)
    expected = (count, sum(before) + max(running_bytes(as_listed(trace), signs), default=0))
    if "Private" in view and any(one["segment_pool_id"] != (0, 0) for one in held):
        expected = (count, drawn["peak_bytes"])  # what private pools keep is drawn as theirs
    if (drawn["blocks"], drawn["peak_bytes"]) != expected:
        drawn["problem"] = f"expected are {expected} blocks and bytes at the peak"
    return drawn if "Segment" in view else {**drawn, **check_words(page, trace)}


def check_words(page: Page, trace: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many of a timeline's blocks tell what they are; ``problem`` where that is not all of them."""
    told = [text for text in page.evaluate(TOLD) if "Size:" in text]
    allocs = sorted((event for event in trace if event["action"] == "alloc"), key=lambda event: -event["size"])
    found: dict[str, Any] = {"tell": {}, "under_the_pointer": pointed(page)}
    for word in ("category", "module", "scope", "tensor"):
        found["tell"][word] = sum(f"\n  {word}: " in text for text in told)
        if found["tell"][word] != sum(word in event["user_metadata"] for event in allocs[:MOST_DRAWN]):
            found["problem"] = f"not every block that has a {word} tells it: {found['tell'][word]} do"
    return found


def pointed(page: Page) -> list[str]:
    """Return what is told at places of the timeline that the pointer really goes to, each text once."""
    box = page.locator("svg:visible").first.bounding_box()
    assert box is not None
    found: dict[str, None] = {}
    for across in range(1, GRID[0]):
        for down in range(1, GRID[1]):
            page.mouse.move(box["x"] + box["width"] * across / GRID[0], box["y"] + box["height"] * down / GRID[1])
            text = page.evaluate(TEXT)
            if "Metadata" in text:
                found[" | ".join(line.strip() for line in text.splitlines()[1:7] if line.startswith("  "))] = None
    return list(found)[:5]


def check_history(page: Page, trace: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the allocator's history tells at some moments; ``problem`` where the trace says otherwise."""
    listed = as_listed(trace)
    allocated, reserved = running_bytes(listed, ALLOCATED), running_bytes(listed, RESERVED)
    places = [*(len(listed) * n // CLICKED for n in range(CLICKED)), allocated.index(max(allocated))]
    seen: dict[str, Any] = page.evaluate(HISTORY, places)
    counted = [tuple(map(int, pair)) for text in seen["told"] for pair in COUNTED.findall(text)]
    expected = [(allocated[place], reserved[place]) for place in places]
    tell = sum("\n  category: " in text for text in seen["blocks"])
    found = {"events": seen["events"], "moments": len(places), "blocks": len(seen["blocks"]), "tell_category": tell}
    if (counted, seen["events"]) != (expected, len(listed)) or tell < len(seen["blocks"]):
        found["problem"] = f"{counted} where the trace has {expected}; {found}"
    return found


def check_snapshot(page: Page, server: Server, exported: Exported, pictures: Path | None) -> Checked:
    """Open one snapshot, and look at every view of every device."""
    checked = Checked()
    complain = checked.problems.append
    page.on("pageerror", lambda error: complain(f"error: {error}"))
    page.on("console", lambda said: complain(f"console: {said.text}") if said.type == "error" else None)
    server.page = page_of(exported.path.read_bytes(), "Active Memory Timeline", server.modules)
    page.goto(PAGE)
    views, devices = page.locator("select").nth(1), page.locator("select").nth(2)
    devices.locator("option").first.wait_for(state="attached", timeout=60_000)
    for device in devices.locator("option").all_inner_texts():
        for view in views.locator("option").all_inner_texts():
            devices.select_option(device)
            views.select_option(view)
            page.wait_for_timeout(100)
            found = check_view(page, exported.snapshot, int(device), view)
            checked.views[f"{view}, device {device}"] = found
            if "problem" in found:
                complain(f"{view}, device {device}: {found['problem']}")
            if pictures is not None:
                page.screenshot(path=pictures / f"{exported.name}-{device}-{view.replace(' ', '_')}.png")
    return checked


def check_view(page: Page, snapshot: dict[str, Any], device: int, view: str) -> dict[str, Any]:
    """Return what one view shows."""
    trace = snapshot["device_traces"][device]
    if any(word in view for word in TIMELINES):
        return check_timeline(page, trace, [one for one in snapshot["segments"] if one["device"] == device], view)
    if "History" in view:
        return check_history(page, trace)
    return {"text": page.evaluate(TEXT)}


def check_all(browser: Browser, server: Server, exported: list[Exported], pictures: Path | None) -> dict[str, Any]:
    """Return what every snapshot showed."""
    found = {}
    for one in exported:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.route("**/*", server.answer)
        checked = check_snapshot(context.new_page(), server, one, pictures)
        found[one.name] = {"file_bytes": one.path.stat().st_size, "views": checked.views, "problems": checked.problems}
        counted = f"{one.name}: {len(checked.views)} views, {len(checked.problems)} problems"
        print(counted, *checked.problems, sep="\n  ", flush=True)
        context.close()
    return found


def main() -> None:
    """Export, open, look, and write one JSON document; exit 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="instead of a new run and the tests' recordings of a card")
    parser.add_argument("--viewer", type=Path)
    parser.add_argument("--modules", type=Path)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "report" / "results" / "cpu" / "snapshot_viewer.json"
    )
    parser.add_argument("--screenshots", type=Path)
    arguments = parser.parse_args()
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    server = Server(arguments.viewer, arguments.modules)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        directory = Path(name)
        runs = {run.stem: run for run in arguments.runs} or {
            "recorded": record_small(directory),
            **dict(recordings_of_a_card(directory)),
        }
        exported = [export(stem, run, directory) for stem, run in runs.items()]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = check_all(browser, server, exported, arguments.screenshots)
        about = {"viewer_sha256": server.sha256, "chromium": browser.version}
        browser.close()
    if arguments.modules:
        about["d3"] = json.loads((arguments.modules / "d3" / "package.json").read_text())["version"]
    write_results(arguments.out, {"environment": describe_environment("cpu"), **about, "snapshots": found})
    if any(one["problems"] for one in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
