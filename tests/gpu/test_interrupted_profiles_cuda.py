"""On a GPU, a profile that is interrupted at any place leaves neither CUPTI nor Kineto behind."""

from __future__ import annotations

from contextlib import suppress

import pytest
from interruptions import DeadlineError, interrupted

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
from gpuledger.collect.adapter import kineto, torch_private  # noqa: E402

EVERY = 3
"""Distance of the places that are tried: each takes some 0.1 s, until CUPTI has detached."""
MOST_PLACES = 400
"""Places until the profile is stopped. After these, its events are read."""


def profile(at: int = -1) -> int:
    """Profile some kernels, and stop again if that is interrupted. Return the number of places where it can be."""
    profiler = kineto.Profiler()
    try:
        with interrupted(at) as events:
            profiler.start()
            torch.ones(64, 64, device="cuda").exp().sum()
            torch.cuda.synchronize()
            profiler.stop(wait=True)
            return events()
    except DeadlineError:
        profiler.stop(wait=False)
        raise


def kernels_of_the_programs_own_profiler() -> int:
    """Return the number of kernels that a profiler of the program sees."""
    with torch.profiler.profile(acc_events=True) as theirs:  # without it, torch warns
        torch.ones(64, 64, device="cuda").exp()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in theirs.events())


def test_a_profile_can_be_interrupted_anywhere_on_a_gpu() -> None:
    torch.ones(1, device="cuda")
    profile()
    expected = kernels_of_the_programs_own_profiler()
    assert expected >= 2
    for at in range(1, min(profile(), MOST_PLACES), EVERY):
        with suppress(DeadlineError):
            profile(at)
        assert not torch_private.is_profiling(), at
        assert kernels_of_the_programs_own_profiler() == expected, at
