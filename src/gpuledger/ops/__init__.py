"""Operator costs: list a model's operators, measure them into a database, sum them up and predict others.

From Python: ``from gpuledger import ops``. Needs torch. ``cli``, ``live``, ``integrations`` and ``services`` may import
it. Start reading at ``workloads`` and ``database``.

>>> from gpuledger import ops
>>> workload = ops.capture(step, name="my model")  # doctest: +SKIP
>>> call = ops.rebuild(workload.uses[0].key)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger._lazy import lazy_names

if TYPE_CHECKING:
    from gpuledger.operator_key import OperatorKey
    from gpuledger.ops.capturing import capture
    from gpuledger.ops.workloads.capture import Capture
    from gpuledger.ops.workloads.rebuild import Call, rebuild
    from gpuledger.ops.workloads.workload import Layer, Use, Workload, read_workload

__all__ = ["Call", "Capture", "Layer", "OperatorKey", "Use", "Workload", "capture", "read_workload", "rebuild"]

_MODULES = {
    "Call": "gpuledger.ops.workloads.rebuild",
    "Capture": "gpuledger.ops.workloads.capture",
    "Layer": "gpuledger.ops.workloads.workload",
    "OperatorKey": "gpuledger.operator_key",
    "Use": "gpuledger.ops.workloads.workload",
    "Workload": "gpuledger.ops.workloads.workload",
    "capture": "gpuledger.ops.capturing",
    "read_workload": "gpuledger.ops.workloads.workload",
    "rebuild": "gpuledger.ops.workloads.rebuild",
}

if not TYPE_CHECKING:  # sums and predictions need no torch
    __getattr__ = lazy_names(__name__, _MODULES)
