"""The stack of a block: its own, or that of the call that its part of backward belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
from card_recordings import RECORDED, post_recording

from gpuledger.analyze.posting.device import device_histories
from gpuledger.analyze.posting.rows import block_table
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import Action, JournalWriter, Part
from gpuledger.model.journal.reading import read_journal

TORCH = "/usr/lib/python3.12/site-packages/torch/"
PROGRAM = [("train.py", 7, "loss_of"), ("train.py", 20, "<module>")]
CALL = [(f"{TORCH}autograd/__init__.py", 354, "backward"), ("train.py", 27, "<module>")]
FORWARD = [("model.py", 12, "forward")]
BARE = [(f"{TORCH}autograd/graph.py", 800, "_engine_run_backward"), *CALL]
TORCH_ONLY = [(f"{TORCH}_ops.py", 841, "__call__")]
HOOK = [("train.py", 9, "hook"), *TORCH_ONLY]
STACKS = [FORWARD, PROGRAM, CALL, BARE, TORCH_ONLY, HOOK]
OF_FORWARD, OF_PROGRAM, OF_CALL, OF_BARE, OF_TORCH, OF_HOOK = range(len(STACKS))

NO_TAG, IN_FORWARD, IN_CALL, IN_MODULE, IN_LATER_PASS, IN_LATER_CALL, IN_UNKNOWN_PASS = range(-1, 6)


def posted(directory: Path, *events: tuple[int, int]) -> list[int | None]:
    """Return the stack of each block allocated by events of ``(tag, stack)``."""
    part = Part()
    tags, own = zip(*events, strict=True)
    common = {"device_idx": 0, "action": Action.ALLOC, "bytes": 512, "stream": 0, "operator_id": -1}
    times = range(len(events))
    part.add("events", **common, address=[512 * n for n in times], time_ns=times, tag_id=tags, stack_id=own)
    for number, phase, visit, module_id, stack_id in (
        (IN_FORWARD, Phase.FORWARD, 0, -1, -1),
        (IN_CALL, Phase.BACKWARD, 1, -1, OF_CALL),
        (IN_MODULE, Phase.BACKWARD, 1, 3, OF_FORWARD),
        (IN_LATER_PASS, Phase.BACKWARD, 2, -1, -1),
        (IN_LATER_CALL, Phase.BACKWARD, 2, -1, OF_PROGRAM),
        (IN_UNKNOWN_PASS, Phase.BACKWARD, 3, -1, -1),
    ):
        place = {"tag_id": number, "step": 1, "phase": phase, "visit": visit, "module_id": module_id}
        part.add("tags", **place, scope_id=-1, stack_id=stack_id, flags=0)
    part.facts["recorder"] = "dispatch"
    part.stacks = [list(stack) for stack in STACKS]
    JournalWriter(directory).write(part)
    found: list[int | None] = block_table(device_histories(read_journal(directory))).column("stack_id").to_pylist()
    return found


def test_a_block_has_the_stack_of_its_allocation(tmp_path: Path) -> None:
    events = [(tag, own) for tag in (IN_FORWARD, IN_CALL, IN_MODULE, NO_TAG) for own in (OF_PROGRAM, OF_HOOK)]
    assert posted(tmp_path, *events) == [own for _, own in events]


@pytest.mark.parametrize("own", [-1, OF_BARE, OF_TORCH])
def test_in_a_thread_of_autograd_it_has_that_of_the_module_s_forward_call(own: int, tmp_path: Path) -> None:
    assert posted(tmp_path, (IN_MODULE, own)) == [OF_FORWARD]


@pytest.mark.parametrize("own", [-1, OF_BARE, OF_TORCH])
def test_outside_modules_it_has_that_of_the_call_of_backward(own: int, tmp_path: Path) -> None:
    assert posted(tmp_path, (IN_CALL, own)) == [OF_CALL]


@pytest.mark.parametrize("own", [-1, OF_TORCH])
def test_a_thread_without_a_tag_has_the_call_of_the_pass_in_progress(own: int, tmp_path: Path) -> None:
    events = [(IN_CALL, OF_PROGRAM), (NO_TAG, own), (IN_LATER_PASS, own), (NO_TAG, own)]
    assert posted(tmp_path, *events) == [OF_PROGRAM, OF_CALL, OF_PROGRAM, OF_PROGRAM]


def test_outside_backward_no_call_takes_its_place(tmp_path: Path) -> None:
    assert posted(tmp_path, (IN_FORWARD, -1), (IN_FORWARD, OF_TORCH)) == [None, OF_TORCH]


def test_without_a_call_it_keeps_its_own(tmp_path: Path) -> None:
    assert posted(tmp_path, (IN_UNKNOWN_PASS, OF_TORCH), (IN_UNKNOWN_PASS, -1)) == [OF_TORCH, None]


@pytest.mark.parametrize("name", RECORDED)
def test_every_block_of_backward_has_a_stack_in_the_step_of_a_gpu_that_recorded_them(name: str, tmp_path: Path) -> None:
    blocks = [row for row in post_recording(name, tmp_path).table("blocks").to_pylist() if row["phase"] == "backward"]
    last = max(row["step"] for row in blocks if row["stack_id"] is not None)
    assert [row for row in blocks if row["step"] == last and row["stack_id"] is None] == []
