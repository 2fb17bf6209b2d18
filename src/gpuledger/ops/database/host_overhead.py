"""Host time of modules and autograd, in addition to launches: three measurements per environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Record

NAMESPACE = "gpuledger."
"""Namespace of keys that are not operators of torch."""
MODULE_CALL = OperatorKey(f"{NAMESPACE}module_call", ())
AUTOGRAD_NODE = OperatorKey(f"{NAMESPACE}autograd_node", ())
NODE_MADE = OperatorKey(f"{NAMESPACE}node_made", ())
"""Creating a node in forward; ``AUTOGRAD_NODE`` is its backward."""
KEYS = (MODULE_CALL, AUTOGRAD_NODE, NODE_MADE)

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
