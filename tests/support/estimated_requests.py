"""Requests of a program that was followed for an estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.model.journal.journal import Part
from gpuledger.model.journal.reading import journal_of
from gpuledger.simulate.estimate.fit import Requests


def requests_of_rows(rows: Iterable[tuple[int, int, int]], elsewhere: Mapping[str, object] | None = None) -> Requests:
    """Return requests and frees, each with its action, address and bytes, and their changes on other GPUs."""
    part = Part(facts={"elsewhere": elsewhere} if elsewhere else {})
    for action, address, size_bytes in rows:
        part.add(
            "events",
            device_idx=0,
            action=action,
            address=address,
            bytes=size_bytes,
            stream=0,
            time_ns=0,
            tag_id=-1,
            stack_id=-1,
            operator_id=-1,
        )
    return Requests(journal_of([part]), AllocatorSettings())
