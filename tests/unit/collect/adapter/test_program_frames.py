"""Frames of the program: neither torch's nor ours, and of a test no more than the test."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import torch

from gpuledger.collect.adapter.frames import program_frames
from gpuledger.collect.variables.names import WIDTH, names_of

pytestmark = pytest.mark.torch


class Frames(torch.nn.Module):
    def forward(self) -> list[FrameType]:
        return list(program_frames())


class Kept:
    def __init__(self, held: list[list[list[torch.Tensor]]]) -> None:
        self.held = held

    def names(self) -> list[str]:
        return list(names_of([self.held[0][0][0]]).values())


def test_frames_of_a_test_end_with_the_test() -> None:
    frames = Frames()()  # through torch.nn.Module.__call__
    assert [frame.f_code.co_name for frame in frames] == ["forward", "test_frames_of_a_test_end_with_the_test"]


RUNNER = """
def run(test):
    session, items, reports, plugins = ([[[object()]] for _ in range(most)] for _ in range(4))
    return test()
"""


@pytest.mark.parametrize(("folder", "names"), [("_pytest", ["Kept.held[0][0][0]"]), ("of_the_program", [])])
def test_what_runs_a_test_takes_no_part_of_a_search(folder: str, names: list[str]) -> None:
    """Pytest leads to more objects than a search looks at, so what a test itself holds deep inside had no name."""
    runner: dict[str, Any] = {"most": WIDTH}
    exec(compile(RUNNER, f"/packages/{folder}/runner.py", "exec"), runner)
    kept = Kept([[[torch.ones(1)]]])
    with ThreadPoolExecutor(1) as pool:  # without what runs this test
        assert pool.submit(runner["run"], kept.names).result() == names
