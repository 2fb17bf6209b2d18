"""The GPU memory balance: one line for each use of the GPU's memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.report.html.definitions import Definition, of_column
from gpuledger.report.html.sections.section import Page, Section, column, script, table

if TYPE_CHECKING:
    from gpuledger.analyze.view.device_view import DeviceView


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    return {"balance": asdict(device.balance) | {"instant": None}}


SECTION = Section(
    name="balance",
    heading="GPU memory balance",
    scripts=(script("balance.js"),),
    data=_data,
    help={
        "used": of_column("Used", "samples", "used_bytes"),
        "driver": of_column("Driver", "samples", "driver_bytes"),
        "capacity": of_column("Capacity", "samples", "total_bytes"),
        "other_processes": of_column(
            "Other processes", "process_samples", "bytes", "memory of other processes on this GPU"
        ),
        "context": Definition("Context", "memory of an empty CUDA context", "see the line's source"),
        "library": Definition(
            "Library",
            "memory of cuBLAS, cuDNN and loaded kernels, outside PyTorch's allocator",
            "see the line's source",
        ),
        "nccl": Definition("NCCL", "memory that came during the first collectives", "see the line's source"),
        "free_segments": Definition(
            "Free segments",
            "segments without an active block; torch.cuda.empty_cache() would release them",
            "allocator history",
        ),
        "graph_pools": Definition(
            "CUDA graph pools",
            "free memory in pools of captured CUDA graphs: replays use it, other tensors cannot",
            "allocator history",
        ),
        "fragmented": Definition(
            "Fragmented",
            "free memory inside segments that hold active blocks",
            "reserved minus free segments minus graph pools minus active",
        ),
        "awaiting_free": Definition(
            "Awaiting free", "freed by the program, but another stream may still use it", "active minus allocated"
        ),
        "unused": Definition("Unused", "free memory of the GPU: capacity minus driver and used", "NVML memory info v2"),
        "unaccounted": Definition(
            "Unaccounted",
            "used memory that no other line explains",
            "used memory by NVML minus all other lines",
        ),
    },
    body='<p id="balance-caption" class="caption"></p>\n'
    + table(
        "balance-body",
        [
            column("Line"),
            column("Bytes", "bytes"),
            column("Share", "share"),
            column("", "bar"),
            column("Source", "source"),
        ],
        kind="ledger balance",
    )
    + '\n<ul id="balance-notes" class="notes muted"></ul>',
)
