"""Optional libraries that tests need."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(library: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests if ``library`` is not installed.

    Unlike ``pytest.importorskip`` it does not load the library while tests are collected, which each worker does.
    """
    return pytest.mark.skipif(find_spec(library) is None, reason=f"needs {library}")
