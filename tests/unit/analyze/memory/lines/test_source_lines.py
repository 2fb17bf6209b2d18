"""Source lines: which frame of a stack is shown, how, and that every byte of a training has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import load_run
from torch import nn

from gpuledger import record
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import read_numbers
from gpuledger.analyze.memory.lines.source_lines import (
    BEFORE_RECORDING,
    NO_STACK,
    NO_STACKS,
    WITHOUT_LINE,
    Frame,
    coded_lines,
    line_text,
    own_frame,
    program_directory,
    read_stacks,
    short_file,
    source_frame,
)
from gpuledger.model.run import Rank

MOST_WITHOUT_LINE = 0.05


@pytest.mark.parametrize(
    ("file", "function", "own", "framework"),
    [
        ("/home/u/train.py", "main", True, False),
        ("train.py", "main", True, False),
        ("/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", "forward", False, True),
        ("/venv/lib/python3.12/site-packages/torchvision/models/resnet.py", "forward", False, False),
        ("/venv/lib/python3.12/site-packages/typing_extensions.py", "wrapper", False, True),
        ("/venv/lib/python3.12/site-packages/my_typing_extensions.py", "wrapper", False, False),
        ("/usr/lib/python3/dist-packages/timm/layers/norm.py", "forward", False, False),
        ("/usr/lib/python3.12/threading.py", "run", False, True),
        ("/usr/lib64/python3.12/contextlib.py", "inner", False, True),
        ("/tmp/torchinductor_u/ab/cab.py", "call", False, True),
        ("<eval_with_key>.4", "forward", False, True),
        ("<string>", "__init__", False, True),
        ("<string>", "<module>", True, False),
        ("<stdin>", "work", True, False),
        ("<ipython-input-3-0a1b>", "<module>", True, False),
        ("C:\\venv\\Lib\\site-packages\\torch\\nn\\functional.py", "relu", False, True),
    ],
)
def test_frames_are_of_the_program_a_library_or_the_framework(
    tmp_path: Path, file: str, function: str, own: bool, framework: bool
) -> None:
    rank = rank_with_stacks(tmp_path, [[(file, 3, function)]])
    assert read_stacks(rank)[0] == (Frame(file, 3, function, own, framework),)


def rank_with_stacks(tmp_path: Path, stacks: list[list[tuple[str, int, str]]]) -> Rank:
    from gpuledger.analyze.posting.rows import stack_table
    from gpuledger.model.run import write_table

    rank = load_run(tmp_path / "one.ledger").rank()
    write_table(rank.directory, stack_table(stacks), "stacks")
    return load_again(tmp_path)


def load_again(tmp_path: Path) -> Rank:
    from gpuledger.model.run import read_run

    return read_run(tmp_path / "one.ledger").rank()


TORCH = Frame("/v/site-packages/torch/nn/functional.py", 7, "relu", own=False, framework=True)
LIBRARY = Frame("/v/site-packages/timm/layers/norm.py", 8, "forward", own=False)
MAIN = Frame("/home/u/train.py", 9, "<module>", own=True)


def test_the_line_is_the_innermost_one_outside_the_framework() -> None:
    assert source_frame((TORCH, LIBRARY, TORCH, MAIN)) == LIBRARY
    assert source_frame((TORCH, MAIN)) == MAIN
    assert source_frame((TORCH,)) == TORCH
    assert source_frame(()) is None
    assert own_frame((TORCH, LIBRARY, MAIN)) == MAIN
    assert own_frame((TORCH,)) is None


def test_paths_are_relative_to_the_program_and_to_packages() -> None:
    directory = program_directory([(TORCH, LIBRARY, MAIN), (TORCH,), ()])
    assert directory == "/home/u/"
    assert line_text(MAIN, directory) == "train.py:9 <module>"
    assert line_text(LIBRARY, directory) == "timm/layers/norm.py:8 forward"
    assert line_text(Frame("/data/net.py", None, "", own=True), directory) == "/data/net.py"
    assert short_file("/home/u/models/net.py", directory) == "models/net.py"
    assert program_directory([(Frame("<stdin>", 1, "<module>", own=True),)]) == ""


def test_without_the_main_file_paths_are_relative_to_all_files_of_the_program() -> None:
    """As in threads and spawned processes."""
    worker, step = Frame("/home/u/work.py", 9, "work", own=True), Frame("/home/u/nets/mlp.py", 4, "step", own=True)
    assert program_directory([(TORCH, worker, TORCH), (TORCH, step, TORCH), (TORCH,)]) == "/home/u/"
    assert program_directory([(TORCH, worker, TORCH), (TORCH, Frame("/opt/n.py", 4, "step", own=True), TORCH)]) == ""
    assert program_directory([(TORCH, step, TORCH), (TORCH, MAIN)]) == "/home/u/"
    assert program_directory([(TORCH, Frame("/main.py", 1, "<module>", own=True))]) == ""


def test_blocks_without_a_stack_say_why(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "one.ledger").rank()
    codes, texts = coded_lines(rank, 0)
    has_stack, before = (read_numbers(rank, "blocks", name, 0) >= 0 for name in ("stack_id", "alloc_index"))
    expected = {(False, False): BEFORE_RECORDING, (False, True): NO_STACK}
    for code, *known in zip(codes.tolist(), has_stack.tolist(), before.tolist(), strict=True):
        reason = expected.get((known[0], known[1]))
        assert texts[code] == reason if reason else texts[code].startswith("train.py")


def test_a_run_without_stacks_says_so(tmp_path: Path) -> None:
    rank = rank_with_stacks(tmp_path, [])
    assert set(coded_lines(rank, 0)[1]) <= {BEFORE_RECORDING, NO_STACKS}


def test_lines_sum_to_the_allocated_bytes(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "one.ledger").rank()
    whole = break_down(rank, find_peak(rank), ("category", "line"))
    assert sum(account.bytes for account in whole.accounts) == whole.allocated_bytes


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x)) * self.scale


def train(make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = nn.Sequential(*(Block(64) for _ in range(3)), nn.Linear(64, 10))
    optimizer = make_optimizer(model.parameters())
    for _ in range(4):
        x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_from_numpy() -> None:
    import numpy as np

    data = torch.utils.data.TensorDataset(torch.from_numpy(np.ones((256, 64), np.float32)), torch.zeros(256))
    model = nn.LSTM(64, 32, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for x, _ in torch.utils.data.DataLoader(data, batch_size=64):
        model(x.reshape(8, 8, 64))[0].square().mean().backward()
        optimizer.step()


def evaluate() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 3, 32, 32))


def cluster() -> None:
    points, centres = torch.randn(500, 16), torch.randn(8, 16)
    for _ in range(5):
        nearest = torch.cdist(points, centres).argmin(1)
        centres = torch.stack([points[nearest == number].mean(0) for number in range(8)])


@pytest.mark.torch
@pytest.mark.parametrize(
    "work", [lambda: train(torch.optim.AdamW), lambda: train(torch.optim.SGD), train_from_numpy, evaluate, cluster]
)
def test_at_most_a_twentieth_of_the_peak_has_no_line(tmp_path: Path, work: Callable[[], None]) -> None:
    with record(out=tmp_path / "run", devices="cpu") as recording:
        work()
    rank = recording.run().rank(0)
    peak = break_down(rank, find_peak(rank), ("category", "line"))
    # Nothing of the program is older than the recording: that is what other tests have left alive in this process.
    accounts = [account for account in peak.accounts if account.line != BEFORE_RECORDING]
    most_bytes = MOST_WITHOUT_LINE * sum(account.bytes for account in accounts)
    assert sum(account.bytes for account in accounts if account.line in WITHOUT_LINE) <= most_bytes
    assert sum(account.bytes for account in accounts if Path(__file__).name not in account.line) <= most_bytes
