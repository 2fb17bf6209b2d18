"""What tests of compiled programs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def compiler_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the compiler's caches and gpuledger's to one file, and have kernels compiled as quickly as can be.

    Here and in programs that are started: without vector instructions a kernel takes half as long, none are looked
    for, and the compiler's headers, which it compiles once for each set of options, are the same for all files.
    """
    pytest.importorskip("torch")
    from torch._inductor import config

    place = tmp_path_factory.mktemp("caches")
    how = {"cpp.vec_isa_ok": False, "compile_threads": 1}
    with pytest.MonkeyPatch.context() as patch, config.patch(how):  # an undone setattr would hide the option
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place / "inductor"))
        patch.setenv("XDG_CACHE_HOME", str(place / "ours"))
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
        yield
