"""Turn Kineto's events into columns of the journal.

The program is paused meanwhile. A call of an event's method takes 0.15 µs or more, and two steps of GPT-2 small have
24,000 events. So only what is stored is read, one field of all events at a time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpuledger.collect.adapter import kineto_events
from gpuledger.model.journal.journal import ActivityKind
from gpuledger.operator_key import SPEAKERS

_HOST = int(ActivityKind.HOST)


CAPTURED_LAUNCH = ""
"""Name of a launch in a capture: it is the operator's that has its ``launch_id``."""


_LATEST_NS = (1 << 63) - 1
"""The largest number that the journal stores."""


@dataclass(frozen=True)
class Activities:
    """Operators, kernels and copies of the profiled steps.

    Attributes:
        columns: Columns of the journal's table ``activities``.
        names: Names by ``name_id``.
        inputs: Inputs of operators by ``inputs_id``.
        has_kernels: Whether there is a kernel or a copy.
    """

    columns: dict[str, list[int]]
    names: list[str]
    inputs: list[Any]
    has_kernels: bool


def read_activities(events: list[Any], until_ns: int) -> Activities:
    """Return what the journal stores of Kineto's events.

    Args:
        events: The events.
        until_ns: Launches of CUDA graphs before this time are stored, in Unix ns.
    """
    all_names = list(map(kineto_events.name_of, events))
    kinds = kineto_events.kinds_of(events, all_names)
    graphs = kineto_events.graph_launches(events, all_names, until_ns)
    graph_events = set(map(id, graphs.values()))
    places = [
        place for place, kind in enumerate(kinds) if kind is not None or (graphs and id(events[place]) in graph_events)
    ]
    codes = [_HOST if (kind := kinds[place]) is None else int(kind) for place in places]
    names = list(map(all_names.__getitem__, places))
    events = list(map(events.__getitem__, places))
    own_ids = list(map(kineto_events.correlation_id_of, events))
    launch_ids = [
        own if code == _HOST else kineto_events.linked_correlation_id_of(event)
        for event, code, own in zip(events, codes, own_ids, strict=True)
    ]
    inputs_ids, inputs = _inputs(events, names, own_ids, codes, launch_ids)
    if graphs:
        for place, own in enumerate(own_ids):
            if own in graphs and (codes[place] != _HOST or id(events[place]) in graph_events):
                launch_ids[place] = -own
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    thread_of, stream_of, device_of = kineto_events.thread_of, kineto_events.stream_of, kineto_events.device_index_of
    columns = {
        "kind": codes,
        "device_idx": [-1 if code == _HOST else device_of(event) for event, code in zip(events, codes, strict=True)],
        "lane": [(thread_of if code == _HOST else stream_of)(event) for event, code in zip(events, codes, strict=True)],
        "name_id": list(map(numbers.__getitem__, names)),
        "start_ns": list(map(kineto_events.start_ns_of, events)),
        "duration_ns": list(map(kineto_events.duration_ns_of, events)),
        "launch_id": launch_ids,
        "sequence": list(map(kineto_events.sequence_of, events)),
        "forward_lane": list(map(kineto_events.forward_thread_of, events)),
        "inputs_id": inputs_ids,
    }
    if not _have_times(columns):
        return read_activities(_with_times(events), until_ns)
    return Activities(columns, list(numbers), inputs, any(codes))


def _have_times(columns: dict[str, list[int]]) -> bool:
    """Return whether all events began and ended.

    Of one that another thread was in when the profile began or ended, the beginning or the duration is no time.
    """
    return max(chain(columns["start_ns"], columns["duration_ns"]), default=0) <= _LATEST_NS


def _with_times(events: list[Any]) -> list[Any]:
    """Return the events that began and ended."""
    start_ns, duration_ns = kineto_events.start_ns_of, kineto_events.duration_ns_of
    return [one for one in events if start_ns(one) <= _LATEST_NS and duration_ns(one) <= _LATEST_NS]


def _inputs(
    events: list[Any], names: list[str], own_ids: list[int], codes: list[int], launch_ids: list[int]
) -> tuple[list[int], list[Any]]:
    """Return the id of each event's inputs, and the distinct inputs by id. The id is -1 for none.

    Has the inputs of operators that launched something, and of operators representing these (``SPEAKERS``). Others are
    not read, because reading takes time of the program.
    """
    launched = {launch for launch, code in zip(launch_ids, codes, strict=True) if code != _HOST} - {0}
    found = [-1] * len(events)
    numbers: dict[str, int] = {}
    distinct: list[Any] = []
    speakers = frozenset(SPEAKERS)
    for place, (name, own, code) in enumerate(zip(names, own_ids, codes, strict=True) if launched else ()):
        if code != _HOST or not (own in launched or name in speakers):
            continue
        inputs = kineto_events.inputs_of(events[place])
        if inputs is not None:
            number = found[place] = numbers.setdefault(json.dumps(inputs), len(numbers))
            if number == len(distinct):
                distinct.append(inputs)
    return found, distinct


def read_capture(events: list[Any]) -> tuple[dict[str, list[int]], list[str]]:
    """Return what the journal stores of the capture of a CUDA graph: columns of ``captures``, and names by ``name_id``.

    Has the operators and ranges, and after them the launches in order. A launch has the ``launch_id`` of its operator.

    Args:
        events: Kineto's events of the capture.
    """
    names = list(map(kineto_events.name_of, events))
    kinds = kineto_events.kinds_of(events, names)
    hosts = [event for event, kind in zip(events, kinds, strict=True) if kind == ActivityKind.HOST]
    launches = kineto_events.captured_launches(events, names)
    kept = [*hosts, *(event for event, _ in launches)]
    kept_names = [*map(kineto_events.name_of, hosts), *[CAPTURED_LAUNCH] * len(launches)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(kept_names))}
    columns = {
        "kind": [*[_HOST] * len(hosts), *(int(kind) for _, kind in launches)],
        "lane": list(map(kineto_events.thread_of, kept)),
        "name_id": list(map(numbers.__getitem__, kept_names)),
        "start_ns": list(map(kineto_events.start_ns_of, kept)),
        "duration_ns": list(map(kineto_events.duration_ns_of, kept)),
        "launch_id": [
            *map(kineto_events.correlation_id_of, hosts),
            *(kineto_events.linked_correlation_id_of(event) for event, _ in launches),
        ],
        "sequence": list(map(kineto_events.sequence_of, kept)),
        "forward_lane": list(map(kineto_events.forward_thread_of, kept)),
    }
    return (columns, list(numbers)) if _have_times(columns) else read_capture(_with_times(events))


def events_between(events: list[Any], began_ns: int, ended_ns: int) -> list[Any]:
    """Return Kineto's events that have started between two times, in Unix ns, or contain that period."""
    found = []
    for event in events:
        start_ns = kineto_events.start_ns_of(event)
        if start_ns < ended_ns and (start_ns >= began_ns or start_ns + kineto_events.duration_ns_of(event) > ended_ns):
            found.append(event)
    return found
