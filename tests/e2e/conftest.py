"""What tests of compiled programs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def compiler_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the compiler's caches and gpuledger's to one file, here and in programs that are started."""
    place = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place / "inductor"))
        patch.setenv("XDG_CACHE_HOME", str(place / "ours"))
        yield
