"""What every test of the collectors begins with."""

from __future__ import annotations

import pytest

from gpuledger.collect.adapter import dynamo


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore observed functions and remove hooks after every test, although other tests have compiled something."""
    monkeypatch.setattr(dynamo, "compiled_frames", lambda: 0)
