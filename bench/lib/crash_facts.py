"""What is true of a crash, as told by the program itself, by the allocator's counters, and by Python's traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

Facts = dict[str, Any]
TOLD: Facts = {}
"""What the program that is running tells of itself."""


def line_of(mark: str, place: Path) -> str:
    """Return ``FILE:LINE`` of the comment ``# holds: MARK`` in a file."""
    lines = place.read_text(encoding="utf-8").splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if line.endswith(f"# holds: {mark}")]
    assert len(numbers) == 1, f"{mark}: {numbers}"
    return f"{place.name}:{numbers[0]}"


def observe(happened: Callable[[], None] | None = None) -> Facts:
    """Return facts that are filled when the allocator runs out of memory, for the first time.

    Args:
        happened: Called after that, before the program has the exception.
    """
    facts: Facts = {}

    def see(device_idx: int, tried_bytes: int, _total_bytes: int, _free_bytes: int) -> None:
        if facts:
            return
        facts.update(tried_bytes=tried_bytes, **in_use(device_idx))
        if happened is not None:
            happened()

    # the programs may fork before they use CUDA, so that this must not start it
    bindings: Any = torch._C
    torch.cuda._lazy_call(lambda: bindings._cuda_attach_out_of_memory_observer(see))
    return facts


def in_use(device_idx: int = 0) -> Facts:
    """Return the allocated bytes, and the bytes that are free in the allocator's segments."""
    stats = torch.cuda.memory_stats(device_idx)
    allocated = stats["allocated_bytes.all.current"]
    return {"allocated_bytes": allocated, "idle_bytes": stats["reserved_bytes.all.current"] - allocated}


def facts_of(error: BaseException, place: Path, model: nn.Module | None) -> Facts:
    """Return the line that requested the memory, the module around it, and the shape of the outermost module's input.

    Args:
        error: What the program received.
        place: The file of the program.
        model: Names the module.
    """
    lines: list[str] = []
    modules: list[nn.Module] = []
    shape = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if Path(code.co_filename).name == place.name:
            lines.append(f"{place.name}:{trace.tb_lineno}")
        elif code.co_name == "_call_impl":
            values = trace.tb_frame.f_locals
            modules.append(values["self"])
            shape = shape or next((shape_of(one.shape) for one in values["args"] if isinstance(one, torch.Tensor)), "")
        trace = trace.tb_next
    names = {} if model is None else {id(module): name for name, module in model.named_modules()}
    module = names.get(id(modules[-1]), "") if modules else ""
    return {"request_line": lines[-1] if lines else "", "request_module": module, "request_inputs": shape}


def shape_of(sizes: Any) -> str:
    """Return a shape as text."""
    return " x ".join(str(size) for size in sizes)
