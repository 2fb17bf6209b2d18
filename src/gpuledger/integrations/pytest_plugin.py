"""The pytest plugin: marks that limit the memory and energy of a test, a fixture, and a table of tests by peak.

It is loaded in every pytest session, so it imports only the standard library and pytest until a test uses it.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuledger.integrations.pytest_marks import (
    DESCRIPTIONS,
    ENERGY,
    GROWTH,
    MEMORY,
    PEAK,
    UNJUDGED,
    UNUSED_GPU,
    MarkedLimits,
    read_limits,
)

if TYPE_CHECKING:
    from gpuledger.integrations.simulated_recording import SimulatedRecording
    from gpuledger.services.recording import Recording

DEVICES = ("auto", "cuda", "cpu")
NO_TORCH = "torch is not installed"
LIMITS = pytest.StashKey[MarkedLimits]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("gpuledger", "GPU memory and energy of tests (gpuledger)")
    group.addoption(
        "--gpuledger", action="store_true", help="Record every test that uses torch, and list the tests by peak memory."
    )
    group.addoption(
        "--gpuledger-devices",
        choices=DEVICES,
        help="Devices to measure: GPUs (auto, cuda), or CPU tensors (cpu). Without a GPU, marked tests are skipped. "
        "[default: gpuledger_devices of the ini file, or auto]",
    )
    group.addoption(
        "--gpuledger-simulate",
        metavar="GPU",
        help="Run tests with a memory limit on a simulated GPU, such as h200. Nothing is computed.",
    )
    group.addoption(
        "--gpuledger-out", metavar="DIR", help="Keep the recording of each test as a run in this directory."
    )
    parser.addini("gpuledger_devices", "Devices to measure: auto, cuda or cpu.", default="auto")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks."""
    for description in DESCRIPTIONS:
        config.addinivalue_line("markers", description)
    if _devices(config) not in DEVICES:
        raise pytest.UsageError(f"gpuledger_devices = {_devices(config)}: expected one of {', '.join(DEVICES)}")
    if _simulated_gpu(config):
        _check_card(_simulated_gpu(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Read every mark before the first test runs, so that a wrong one is an error at once."""
    for item in items:
        item.stash[LIMITS] = read_limits(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if its mark cannot be measured on this machine."""
    limits = item.stash.get(LIMITS, MarkedLimits())
    if limits.of_bytes and (reason := _why_no_bytes(item.config)):
        name = MEMORY if limits.memory_bytes is not None else GROWTH
        pytest.skip(f"{name}: {reason}")
    if limits.energy is not None and (reason := _why_no_energy()):
        pytest.skip(f"{ENERGY}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record a test that is held to bytes, or every test with ``--gpuledger``, and fail it where it takes more."""
    limits = item.stash.get(LIMITS, MarkedLimits())
    if not limits.of_bytes and not (item.config.getoption("--gpuledger") and "torch" in sys.modules):
        result = yield
    else:
        result = yield from _recorded_call(item, limits)
    if limits.energy is not None:
        from gpuledger.integrations.pytest_energy import judge_energy

        judge_energy(item, limits.energy)
    return result


def _recorded_call(item: pytest.Item, limits: MarkedLimits) -> Generator[None, Any, Any]:
    from gpuledger.integrations.pytest_recorded import RecordedTest

    with _place(item) as place:
        test = RecordedTest(item, limits, lambda: _make_recording(item, place, simulated=limits.of_bytes))
        with test.recorded():
            test.repeat()
            result = yield
            test.end_call()
        test.judge(kept=bool(item.config.getoption("--gpuledger-out")))
    return result


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the recorded tests by peak bytes, and say which `gpuledger run` kept from being measured."""
    _tell_unjudged(terminalreporter)
    if not config.getoption("--gpuledger"):
        return
    from gpuledger.integrations.pytest_measure import table_lines
    from gpuledger.units import counted

    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    rows = [(report.nodeid, dict(report.user_properties)) for report in reports if report.when == "call"]
    measured = [(name, found[PEAK]) for name, found in rows if PEAK in found]
    terminalreporter.section(f"gpuledger: {counted(len(measured), 'test')} by peak memory")
    for line in table_lines(measured):
        terminalreporter.write_line(line)


def _tell_unjudged(terminalreporter: Any) -> None:
    from gpuledger.units import counted

    if runs := _values_of(terminalreporter, UNJUDGED):
        why = f"`gpuledger run` records this process into {runs[0]}"
        terminalreporter.write_line(f"gpuledger: {counted(len(runs), 'test')} not measured: {why}")
    for name in _values_of(terminalreporter, UNUSED_GPU):
        terminalreporter.write_line(f"gpuledger: {name}: nothing was put on the simulated GPU")


def _values_of(terminalreporter: Any, name: str) -> list[Any]:
    """Return the values of a property of all tests that were called."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    return [value for one in reports if one.when == "call" for key, value in one.user_properties if key == name]


@pytest.fixture
def gpuledger_recording(request: pytest.FixtureRequest) -> Iterator[Recording | SimulatedRecording]:
    """Return a recording for the test to begin and end: ``with gpuledger_recording:``, afterwards ``.run()``."""
    with _place(request.node) as place:
        yield _make_recording(request.node, place, simulated=True)


def _make_recording(item: Any, place: Path, *, simulated: bool) -> Recording | SimulatedRecording:
    """Return the recording of a test, on a simulated GPU if the option and ``simulated`` are set."""
    card = _simulated_gpu(item.config)
    if card and simulated:
        from gpuledger.integrations.simulated_recording import SimulatedRecording

        return SimulatedRecording(card, place)
    from gpuledger.services.recording import record

    return record(item.name, out=place, force=True, devices=_devices(item.config))


@contextmanager
def _place(item: Any) -> Iterator[Path]:
    """Yield the directory of a test's run: below ``--gpuledger-out``, or a temporary one."""
    kept = item.config.getoption("--gpuledger-out")
    name = re.sub(r"[^\w.\[\]-]+", "-", item.nodeid, flags=re.ASCII).strip("-.")[-150:]
    if kept:
        yield Path(kept) / name
        return
    with tempfile.TemporaryDirectory(prefix="gpuledger-") as directory:
        yield Path(directory) / name


def _devices(config: pytest.Config) -> str:
    return str(config.getoption("--gpuledger-devices") or config.getini("gpuledger_devices"))


def _why_no_energy() -> str:
    """Return why energy cannot be measured on this machine; "" if it can."""
    if find_spec("torch") is None:
        return NO_TORCH
    from gpuledger.errors import NoDeviceError
    from gpuledger.integrations.step_energy import card_energy_counter

    try:
        card_energy_counter()
    except NoDeviceError as error:
        return error.message
    return ""


def _why_no_bytes(config: pytest.Config) -> str:
    """Return why bytes cannot be measured here; "" where they can."""
    if find_spec("torch") is None:
        return NO_TORCH
    import torch

    if _simulated_gpu(config) or _devices(config) == "cpu" or torch.cuda.is_available():
        return ""
    return "no CUDA GPU here; use --gpuledger-simulate h200 for a simulated GPU"


def _simulated_gpu(config: pytest.Config) -> str:
    return str(config.getoption("--gpuledger-simulate") or "")


def _check_card(name: str) -> None:
    from gpuledger.errors import UsageError
    from gpuledger.simulate.catalogue import find_card

    try:
        find_card(name)
    except UsageError as error:
        message = error.message.replace("--gpu ", "--gpuledger-simulate ")
        raise pytest.UsageError(f"{message} ({error.hint})" if error.hint else message) from error
