"""What tests of compiled programs share."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator

import pytest
from preloaded import COMPILER


@pytest.fixture(scope="module")
def compiler_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the compiler's caches and gpuledger's to one file, here and in programs that are started.

    The compiler is loaded beforehand, so that no recording walks over its half a million objects.
    """
    for name in COMPILER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    place = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place / "inductor"))
        patch.setenv("XDG_CACHE_HOME", str(place / "ours"))
        yield
