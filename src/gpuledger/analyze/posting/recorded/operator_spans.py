"""Time of the operators in the recorded steps of a program on the CPU that ended before a step could be profiled.

An operator has the module, the phase and the scope of the memory that its thread would have allocated then. Autograd's
own time is not in it. Compiled code runs without operators, so a program with compiled code has no such times.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.activities import OwnedSpans, steps_at
from gpuledger.analyze.posting.launched_work import SpanWork
from gpuledger.model.accounts import SPAN_KINDS, Phase
from gpuledger.model.journal.reading import Journal
from gpuledger.model.pass_facts import TIME_STEPS

I64 = NDArray[np.int64]

NAMES, RANGE_NS = "names", "range_ns"
"""Keys of the fact ``timed_operators``: names of the operators, and the time in ns in which all were measured."""


def with_recorded_times(journal: Journal) -> tuple[Journal, OwnedSpans] | None:
    """Return the operators of the recorded steps, and the journal without a profile.

    The first recorded step is left out if there are others, because it warms up.

    Returns:
        None if a step ended after the recorded ones: it was profiled, or the run says why not.
    """
    facts, table = journal.facts, journal.tables["operators"]
    if not (table["start_ns"].size and facts.get("timed_operators")) or _went_on(journal):
        return None
    if (facts.get("compilation") or {}).get("graphs") or (journal.tables["events"]["device_idx"] >= 0).any():
        return None
    numbers = _timed_steps(journal)
    step = steps_at(journal, table["start_ns"])
    chosen = np.flatnonzero(np.isin(step, numbers))
    if not chosen.size:
        return None
    lanes = np.unique(table["lane"][chosen]).size
    named = {
        "activity_names": facts["timed_operators"][NAMES],
        "recorded_time_steps": [int(numbers[0]), int(numbers[-1])],
        "times_of_all_threads": lanes > 1,
        "time_steps": None,
        "line_step": None,
        "kernels_alone": None,
    }
    spans = _spans_of(journal, chosen, step[chosen])
    return replace(journal, facts={**facts, **named}), spans


def _went_on(journal: Journal) -> bool:
    """Return whether a step ended after the recorded ones, in which the program could be profiled."""
    steps = journal.tables["steps"]
    recorded = steps["step"][steps["recorded"] == 1]
    return not recorded.size or int(steps["step"].max()) > int(recorded.max())


def _timed_steps(journal: Journal) -> I64:
    """Return the numbers of the newest recorded steps in which all operators were measured."""
    steps, (from_ns, until_ns) = journal.tables["steps"], journal.facts["timed_operators"][RANGE_NS]
    is_whole = (steps["start_ns"] >= from_ns) & (steps["end_ns"] <= until_ns) & (steps["recorded"] == 1)
    numbers = np.unique(steps["step"][is_whole]).astype(np.int64)
    warm = numbers[numbers > 1] if numbers.size > 1 else numbers
    return warm[-TIME_STEPS:]


def _spans_of(journal: Journal, chosen: I64, step: I64) -> OwnedSpans:
    table, tags = {name: values[chosen] for name, values in journal.tables["operators"].items()}, journal.tables["tags"]
    order = np.argsort(tags["tag_id"], kind="stable")
    place = np.searchsorted(tags["tag_id"], table["tag_id"], sorter=order)
    row = order[np.minimum(place, order.size - 1)] if order.size else np.zeros(chosen.size, dtype=np.int64)
    has_tag = tags["tag_id"][row] == table["tag_id"] if order.size else np.zeros(chosen.size, dtype=bool)

    def tagged(name: str, none: int) -> I64:
        return np.where(has_tag, tags[name][row], none).astype(np.int64) if order.size else np.full(chosen.size, none)

    phase = tagged("phase", int(Phase.BETWEEN))
    none = np.full(chosen.size, -1, dtype=np.int64)
    unknown = np.full(chosen.size, np.nan)
    name_id = table["name_id"].astype(np.int64)
    start_ns = table["start_ns"].astype(np.int64)
    return OwnedSpans(
        kind=np.full(chosen.size, SPAN_KINDS.index("host"), dtype=np.int8),
        device_idx=none,
        stream=table["lane"].astype(np.int64),
        name_id=name_id,
        start_ns=start_ns,
        end_ns=start_ns + table["duration_ns"],
        module_id=np.where(phase == Phase.OPTIMIZER, -1, tagged("module_id", -1)),
        phase=np.where(phase == Phase.SETUP, int(Phase.BETWEEN), phase).astype(np.int8),
        step=step,
        operator_id=name_id,
        scope_id=tagged("scope_id", -1),
        launched_ns=none,
        work=SpanWork(unknown, unknown, np.full(chosen.size, "", dtype=object)),
        fusion_id=none,
        is_replayed=np.zeros(chosen.size, dtype=bool),
        is_matched=np.zeros(chosen.size, dtype=bool),
        stack_id=table["stack_id"].astype(np.int64),
    )
