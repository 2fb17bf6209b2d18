"""Host time of a step: measured on the model itself, or of modules and autograd in addition to launches. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.database.statistics import Spread

NAMESPACE = "gpuledger."
"""Namespace of keys that are not operators of torch."""
MODULE_CALL = OperatorKey(f"{NAMESPACE}module_call", ())
AUTOGRAD_NODE = OperatorKey(f"{NAMESPACE}autograd_node", ())
NODE_MADE = OperatorKey(f"{NAMESPACE}node_made", ())
"""Creating a node in forward; ``AUTOGRAD_NODE`` is its backward."""
KEYS = (MODULE_CALL, AUTOGRAD_NODE, NODE_MADE)
HOST_STEP = f"{NAMESPACE}host_step"
"""Operator of the key of a model's own host time: see :func:`host_step_key`."""

MODULE_CALLS, AUTOGRAD_NODES = "module_calls", "autograd_nodes"
"""Keys of their numbers per step in a workload's settings. Older workloads do not have them."""


@dataclass(frozen=True)
class HostOverhead:
    """The host's time in modules and autograd, of one step."""

    module_calls: int
    autograd_nodes: int
    time_ns: float


def is_operator(key: OperatorKey) -> bool:
    """Return whether a key is that of an operator, and not one of :data:`KEYS`."""
    return not key.operator.startswith(NAMESPACE)


def host_overhead_of(settings: Mapping[str, Any], records: Sequence[Record]) -> HostOverhead | None:
    """Return a workload's host time outside operators; None if the workload or the database does not have it.

    Args:
        settings: Settings of the workload.
        records: Records of one environment. The newest is used.
    """
    counts = [settings.get(name) for name in (MODULE_CALLS, AUTOGRAD_NODES)]
    found = {record.key_digest: record for record in sorted(records, key=lambda record: record.measured_ns)}
    times_ns = [found[key.digest].time_median_ns if key.digest in found else None for key in KEYS]
    calls, nodes = (count if isinstance(count, int) else None for count in counts)
    call_ns, node_ns, made_ns = times_ns
    if calls is None or nodes is None or call_ns is None or node_ns is None:
        return None
    return HostOverhead(
        calls, nodes, calls * call_ns + nodes * (node_ns + (made_ns or 0.0))
    )  # missing from older databases


def host_record(
    key: OperatorKey, environment: Environment, spread: Spread, how: Mapping[str, Any], measured_ns: int
) -> Record:
    """Return a record of host time. ``how`` describes the method of the measurement."""
    times_ns = (spread.median, spread.low, spread.high)
    block = {"kind": "summary", **asdict(spread)}
    method = {"mode": "host", **how}
    return Record(key.digest, environment.digest, method, *times_ns, blocks=(block,), measured_ns=measured_ns)


def host_step_key(settings: Mapping[str, Any], mode: str) -> OperatorKey | None:
    """Return the key of the host time of a step of a workload's model; None if the workload is of a program.

    Args:
        settings: Settings of the workload.
        mode: ``inference`` or ``training``.
    """
    model = settings.get("model")
    if not isinstance(model, str):
        return None
    inputs = ",".join(settings.get("inputs") or ())
    return OperatorKey(HOST_STEP, (model, mode, inputs, settings.get("optimizer"), settings.get("autocast")))


def host_step_ns(settings: Mapping[str, Any], mode: str, records: Sequence[Record]) -> float | None:
    """Return the host time of a step that was measured on the workload's model itself; None if it was not.

    Args:
        settings: Settings of the workload.
        mode: ``inference`` or ``training``.
        records: Records of one environment. The newest is used.
    """
    key = host_step_key(settings, mode)
    if key is None:
        return None
    found = [record for record in records if record.key_digest == key.digest and record.status == "ok"]
    return max(found, key=lambda record: record.measured_ns).time_median_ns if found else None
