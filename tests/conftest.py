"""What every test begins with."""

from __future__ import annotations

import gc
import os

import hypothesis
import pytest

# A slow machine fails no test.
hypothesis.settings.register_profile("gpuledger", deadline=None)
hypothesis.settings.load_profile("gpuledger")

# Two workers have two cores: threads that wait for each other in operators of a few numbers only burn them. Read when
# torch and NumPy are loaded, here and in every program that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Keep what is loaded by now, torch above all, out of the hundreds of walks over all objects that recordings do."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no width of the terminal that runs the tests, or of the test runner's workers, reach what is tested."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
