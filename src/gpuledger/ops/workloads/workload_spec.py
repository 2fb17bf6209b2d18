"""A workload that is asked for, in the words of a command or a campaign file."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.ops.workloads.workload import Mode


@dataclass(frozen=True)
class WorkloadSpec:
    """One workload that a campaign asks for, in words; ``inputs`` None stands for the model's own."""

    model: str
    mode: Mode = "inference"
    inputs: str | None = None
    batch: int = 32
    weights: str = "random"
    optimizer: str = "sgd"
    autocast: str | None = None
