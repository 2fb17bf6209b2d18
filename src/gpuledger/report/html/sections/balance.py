"""The balance of the GPU, line by line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.report.html.definitions import Definition, of_column
from gpuledger.report.html.sections.section import Page, Section, column, script, table

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import DeviceView


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    return {"balance": asdict(device.balance) | {"instant": None}}


SECTION = Section(
    name="balance",
    heading="Balance of the card",
    scripts=(script("balance.js"),),
    data=_data,
    help={
        "used": of_column("Used", "samples", "used_bytes"),
        "driver": of_column("Driver", "samples", "driver_bytes"),
        "capacity": of_column("Capacity", "samples", "total_bytes"),
        "other_processes": of_column(
            "Other processes", "process_samples", "bytes", "what other processes hold on this card"
        ),
        "context": Definition(
            "Context", "what one process's CUDA context takes on this card", "measured apart; see the line's source"
        ),
        "library": Definition(
            "Library", "what cuBLAS, cuDNN and other libraries take outside the allocator", "measured apart"
        ),
        "free_segments": Definition(
            "Free segments",
            "segments without a block in use; empty_cache() would give them back",
            "history and addresses",
        ),
        "fragmented": Definition(
            "Fragmented", "free pieces inside segments that are in use", "reserved less free segments less active"
        ),
        "awaiting_free": Definition(
            "Awaiting free", "given back by the program while another stream may still use it", "active less allocated"
        ),
        "unused": Definition(
            "Unused", "what the GPU could still give: its capacity less driver and used", "NVML memory info v2"
        ),
        "unaccounted": Definition(
            "Remainder",
            "the GPU's used bytes less every line that was measured; free to be wrong, never hidden",
            "NVML's reading less all other lines",
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
