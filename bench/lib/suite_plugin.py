"""A plugin for pytest that ``bench/house/suite.py`` loads: writes what processor time each test took.

One line of JSON per test: ``test`` and ``processor_s``, of this process, of its children that ended in that time, and
of the server of quick interpreters with its own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DIRECTORY = Path(os.environ["SUITE_CPU_DIRECTORY"])
_servers: list[int] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Take the time of a test with its fixtures."""
    begin_s = _own_s() + _server_s()
    try:
        return (yield)
    finally:
        row = {"test": item.nodeid, "processor_s": _own_s() + _server_s() - begin_s}
        with (DIRECTORY / str(os.getpid())).open("a") as stream:
            stream.write(json.dumps(row) + "\n")


def _own_s() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _server_s() -> float:
    """Return what the quick server has taken so far with the forks that ended; 0 before there is one."""
    if "quick" in sys.modules and not _servers:
        _servers.extend(_find_servers())
    total = 0.0
    for server in _servers:
        try:
            words = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, words[11:15])) / TICKS_PER_S  # utime, stime, cutime, cstime
    return total


def _find_servers() -> Iterator[int]:
    """Yield the process of the server that ``quick.quick_python`` has started for this test run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))[:12]
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes()
        except OSError:
            continue
        if b"quick_server.py" in words and run.encode() in words:
            yield int(place.parent.name)
