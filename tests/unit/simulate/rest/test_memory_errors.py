"""Out-of-memory errors are raised where a program handles them, and nowhere else."""

from __future__ import annotations

import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from gpuledger.cli.predict.documents import estimate_document
from gpuledger.cli.predict.estimate_text import verdict_line
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate import child
from gpuledger.simulate.estimate.run import Order, describe_order, estimate_program
from gpuledger.simulate.rest.error_handlers import handles_memory_error

pytestmark = pytest.mark.torch
AROUND = {
    "except torch.cuda.OutOfMemoryError: size //= 2": True,
    "except (ValueError, torch.OutOfMemoryError) as error: size //= 2": True,
    "except OutOfMemoryError: size //= 2": True,
    "except MEMORY: size //= 2": True,
    "except MANY: size //= 2": True,
    "except RuntimeError as error: assert 'out of memory' in str(error)": True,
    "except Exception as error: assert is_oom_error(error)": True,
    "except: torch.cuda.empty_cache()": True,
    "except ValueError: pass\n    except RuntimeError as error: assert 'CUDA out of memory' in str(error)": True,
    "except RuntimeError as error: print(error)": False,
    "except RuntimeError as error: print('in the room')": False,
    "except ValueError: torch.cuda.empty_cache()": False,
    "except torch.OutOfMemoryError as error:\n        print(error)\n        raise": False,
    "except torch.OutOfMemoryError:\n        print('out of memory')\n        sys.exit(1)": False,
    "finally: torch.cuda.empty_cache()": False,
}


@pytest.mark.parametrize("handler", AROUND)
def test_a_handler_is_found_by_what_it_catches(tmp_path: Path, handler: str) -> None:
    script = tmp_path / "handler.py"
    lines = ("import sys, torch", "def train(size):", "    try: ask()", f"    {handler}", "train(4)")
    script.write_text("\n".join(lines), encoding="utf-8")
    found: list[bool] = []
    names = {"OutOfMemoryError": child, "ask": lambda: found.append(handles_memory_error(sys._getframe(1)))}
    names |= {"MEMORY": torch_error(), "MANY": (KeyError, torch_error())}
    runpy.run_path(str(script), names)
    assert found == [AROUND[handler]]


def torch_error() -> type:
    import torch

    return torch.OutOfMemoryError


def test_the_handler_is_that_around_what_runs(tmp_path: Path) -> None:
    """Not one beside it, in its own handler, or around the definition of the function that runs."""
    script = tmp_path / "around.py"
    script.write_text(
        textwrap.dedent("""
            from contextlib import suppress
            from functools import cache
            import torch

            try:
                def inner():
                    ask("inner")
            except torch.OutOfMemoryError:
                pass

            @cache
            def outer():
                try:
                    pass
                except torch.OutOfMemoryError:
                    pass
                ask("after")
                try:
                    inner()
                    raise torch.OutOfMemoryError
                except torch.OutOfMemoryError:
                    ask("handler")
                else:
                    ask("else")
                try:
                    [ask("listed") for _ in range(1)]
                except torch.OutOfMemoryError:
                    pass
                with suppress(torch.OutOfMemoryError):
                    ask("suppressed")
                try:
                    try:
                        ask("nested")
                    except RuntimeError as error:
                        raise
                except torch.OutOfMemoryError:
                    pass
                try:
                    try:
                        ask("swallowed")
                    except RuntimeError as error:
                        print(error)
                except torch.OutOfMemoryError:
                    pass

            inner()
            outer()
        """),
        encoding="utf-8",
    )
    found: list[tuple[str, bool]] = []
    ask = lambda name: found.append((name, handles_memory_error(sys._getframe(1))))  # noqa: E731
    runpy.run_path(str(script), {"ask": ask})
    assert found == [
        ("inner", False),
        ("after", False),
        ("inner", True),
        ("handler", False),
        ("listed", True),
        ("suppressed", True),
        ("nested", True),
        ("swallowed", False),
    ]


HALVES = """
    import sys
    import traceback
    import torch

    torch.cuda.set_per_process_memory_fraction(0.02)  # 479 MiB of an RTX 3090
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


    def step(rows):
        loss = model(torch.ones(rows, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


    rows, done = 1 << 15, 0
    while done < 4:
        try:
            step(rows)
            done += 1
        except torch.cuda.OutOfMemoryError as error:
            size = "128.00" if rows == 1 << 15 else "64.00"
            told = f"CUDA out of memory. Tried to allocate {size} MiB. GPU 0 has a total capacity of 23.40 GiB of which"
            assert str(error).startswith(told)
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            own = [frame for frame in frames if "/gpuledger/simulate/" in frame.f_code.co_filename]
            assert own and all("args" not in frame.f_locals for frame in own)  # which would hold tensors
            optimizer.zero_grad()
            torch.cuda.empty_cache()
            rows //= 2
            if rows < int(sys.argv[1]):
                raise
    assert rows == 8192
    assert torch.cuda.max_memory_reserved() <= 0.02 * torch.cuda.mem_get_info()[1]
    assert torch.cuda.memory_stats()["num_ooms"] == 2
"""


@pytest.mark.parametrize(("least", "handled"), [(1, 2), (1 << 14, 0)])
def test_a_program_that_takes_smaller_batches_after_errors_is_estimated_with_these(
    tmp_path: Path, least: int, handled: int
) -> None:
    """One that gives up before it fits is estimated as on a GPU with enough memory."""
    script = tmp_path / "halves.py"
    script.write_text(textwrap.dedent(HALVES), encoding="utf-8")
    order = Order((str(script), str(least)), find_card("rtx-3090"), None, others=())

    def followed(order: Order, directory: Path, _output: object, assumption: str) -> dict[str, Any]:
        return child.follow_program(describe_order(order, directory, assumption), list(order.program))

    found = estimate_program(order, tmp_path / "run.ledger", follower=followed)
    limit_bytes = int(0.02 * order.card.available_bytes)
    assert found.memory_errors == estimate_document(found)["memory_errors"] == handled
    assert (found.fit.verdict, found.peak_reserved_bytes < limit_bytes) == (
        ("on the edge", True) if handled else ("does not fit", False)
    )
    assert verdict_line(found).endswith(", 2 out-of-memory errors handled)") is bool(handled)
    notes = [note for note in found.notes if note.startswith("halves.py:12: out of memory on the simulated GPU")]
    assert len(notes) == bool(handled)
    if handled:
        assert found.upper_bytes <= found.card.usable_bytes
        assert {fit.verdict for fit in found.others} <= {"on the edge", "does not fit"}
