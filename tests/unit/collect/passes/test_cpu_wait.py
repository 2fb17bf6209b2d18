"""How long the thread of the steps waits for a CPU."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuledger.collect.passes.cpu_wait import CpuWait


def test_the_share_is_of_the_time_since_the_beginning(tmp_path: Path) -> None:
    source = tmp_path / "schedstat"
    source.write_text("1000 500 3\n")
    wait = CpuWait(source)
    assert wait.wait_frac() is None
    wait.begin()
    began_ns = time.monotonic_ns()
    time.sleep(0.01)
    source.write_text("2000 2000500 4\n")
    found = wait.wait_frac()
    longest_ns = time.monotonic_ns() - began_ns
    assert found is not None
    assert 2_000_000 / longest_ns * 0.9 < found <= 0.2
    source.write_text("2000 9000000000 4\n")
    assert wait.wait_frac() == 1.0
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(wait.wait_frac).result() is None


@pytest.mark.parametrize("content", ["", "0 0 0\n", "none\n", None])
def test_a_kernel_that_does_not_count_it_gives_no_share(content: str | None, tmp_path: Path) -> None:
    source = tmp_path / "schedstat"
    if content is not None:
        source.write_text(content)
    wait = CpuWait(source)
    wait.begin()
    assert wait.wait_frac() is None
