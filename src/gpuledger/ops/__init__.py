"""What operators cost: which ones a model is made of, a database of measurements, sums, and predictions.

From Python: ``from gpuledger import ops``. May import ``simulate`` and ``collect``; torch. Begin with ``workloads`` and
``database``.

>>> from gpuledger import ops
>>> workload = ops.capture(step, name="my model")  # doctest: +SKIP
>>> call = ops.rebuild(workload.uses[0].key)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuledger.operator_key import OperatorKey
    from gpuledger.ops.capturing import capture
    from gpuledger.ops.workloads.capture import Capture
    from gpuledger.ops.workloads.rebuild import Call, rebuild
    from gpuledger.ops.workloads.workload import Layer, Use, Workload, read_workload

__all__ = ["Call", "Capture", "Layer", "OperatorKey", "Use", "Workload", "capture", "read_workload", "rebuild"]

_HOMES = {
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


def __getattr__(name: str) -> object:
    """Return a public name, imported when first asked for: sums and predictions need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
