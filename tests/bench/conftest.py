"""The convolution example, loaded once for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from conv_example import Load, example_modules


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with example_modules() as load_module:
        yield load_module


@pytest.fixture(scope="module")
def convolutions(load: Load) -> ModuleType:
    module: ModuleType = load("convolutions")
    return module
