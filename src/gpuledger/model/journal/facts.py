"""What the facts of a journal must look like where they are read. Further keys may be there."""

from __future__ import annotations

from typing import Any

from gpuledger.files.shapes import Fields, ListOf, MappingOf, check_shape, maybe
from gpuledger.model.json_object import shape_of
from gpuledger.model.manifest import RecordedFacts

_FACTS = Fields(
    {
        **shape_of(RecordedFacts).known,
        "closed": maybe(str),
        "called_roots": maybe(ListOf(int)),
        "workspace_bytes": maybe(ListOf(int)),
        "steps_asked": maybe(ListOf(maybe(int))),
        "activity_names": maybe(ListOf(str)),
        "operator_inputs": maybe(ListOf(maybe(ListOf(maybe(ListOf(object)), 4, 4)))),
        "time_pass_open": maybe(bool),
        "card_uuids": maybe(ListOf(str)),
        "energy_counters": maybe(MappingOf(maybe(MappingOf(int)))),
        "idle_w": maybe(MappingOf(maybe(float))),
        "own_pids": maybe(ListOf(int)),
        "pids_before": maybe(MappingOf(maybe(ListOf(int)))),
        "operators": maybe(ListOf(str)),
        "cublas_handles": int,
    }
)


def check_facts(facts: dict[str, Any]) -> None:
    """Check the facts of a journal.

    Raises:
        ValueError: a value is not what posting takes it for; the message says which.
    """
    check_shape(facts, _FACTS, "")
