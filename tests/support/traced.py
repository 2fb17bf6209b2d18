"""Activities of a time pass whose owners are known, as a journal holds them."""

from __future__ import annotations

from typing import Any

from gpuledger.analyze.posting.activities import OwnedSpans, own_spans
from gpuledger.model.journal.journal import ActivityKind, Part
from gpuledger.model.journal.reading import journal_of

NODE = "autograd::engine::evaluate_function: "
MAIN, ENGINE, OTHER = 1, 2, 3


class Trace:
    """Builds a journal's activities; times in ns, one launch id for each host event."""

    def __init__(self) -> None:
        self.part = Part()
        self.names: dict[str, int] = {}
        self.launches = 0
        self.later_steps: list[tuple[int, int, int]] = []
        self.inputs: list[list[Any]] = []

    def host(
        self,
        name: str,
        start: int,
        end: int,
        *,
        sequence: int = -1,
        lane: int = MAIN,
        made_by: int = 0,
        inputs: list[Any] | None = None,
    ) -> int:
        self.launches += 1
        told = -1 if inputs is None else len(self.inputs)
        self.inputs += [] if inputs is None else [inputs]
        self._add(ActivityKind.HOST, -1, lane, name, start, end, self.launches, sequence, made_by, told)
        return self.launches

    def device(
        self, name: str, start: int, end: int, launch: int, kind: ActivityKind = ActivityKind.KERNEL, stream: int = 7
    ) -> None:
        self._add(kind, 0, stream, name, start, end, launch, -1, 0)

    def _add(
        self,
        kind: ActivityKind,
        device: int,
        lane: int,
        name: str,
        start: int,
        end: int,
        launch: int,
        sequence: int,
        made_by: int,
        inputs_id: int = -1,
    ) -> None:
        self.part.add(
            "activities",
            kind=int(kind),
            device_idx=device,
            lane=lane,
            name_id=self.names.setdefault(name, len(self.names)),
            start_ns=start,
            duration_ns=end - start,
            launch_id=launch,
            sequence=sequence,
            forward_lane=made_by,
            inputs_id=inputs_id,
        )

    def owned(self) -> OwnedSpans:
        self.part.facts["activity_names"] = list(self.names)
        self.part.facts["operator_inputs"] = self.inputs
        for step, start_ns, end_ns in self.later_steps:
            self.part.add("steps", step=step, kind=0, recorded=False, start_ns=start_ns, end_ns=end_ns)
        self.part.add("steps", step=4, kind=0, recorded=False, start_ns=0, end_ns=1000)
        spans = own_spans(journal_of([self.part]))
        assert spans is not None
        return spans
