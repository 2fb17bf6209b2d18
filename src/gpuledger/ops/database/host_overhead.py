"""What modules and autograd take the host beside the launches of operators: three figures of an environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Record

NAMESPACE = "gpuledger."
"""What is in the database and is no operator of torch's."""
MODULE_CALL = OperatorKey(f"{NAMESPACE}module_call", ())
AUTOGRAD_NODE = OperatorKey(f"{NAMESPACE}autograd_node", ())
NODE_MADE = OperatorKey(f"{NAMESPACE}node_made", ())
"""What a node costs when the forward pass makes it; ``AUTOGRAD_NODE`` is the way back through it."""
KEYS = (MODULE_CALL, AUTOGRAD_NODE, NODE_MADE)

MODULE_CALLS, AUTOGRAD_NODES = "module_calls", "autograd_nodes"
"""Where a workload's settings hold how many there are in a step; one captured before they were counted does not."""


@dataclass(frozen=True)
class HostOverhead:
    """The host's time in modules and autograd, of one step."""

    module_calls: int
    autograd_nodes: int
    time_ns: float


def is_operator(key: OperatorKey) -> bool:
    """Return whether a key is an operator's, and not one of :data:`KEYS`."""
    return not key.operator.startswith(NAMESPACE)


def host_overhead_of(settings: Mapping[str, Any], records: Sequence[Record]) -> HostOverhead | None:
    """Return what a workload spends around its operators; None where the workload or the database does not tell.

    Args:
        settings: The workload's.
        records: Of one environment; the newest counts.
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
    )  # an older database lacks the last
