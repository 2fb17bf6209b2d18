"""A requested workload, as given by a command or a campaign file."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.ops.workloads.workload import Mode


@dataclass(frozen=True)
class WorkloadSpec:
    """One requested workload, as text. ``inputs`` None means the model's default inputs."""

    model: str
    mode: Mode = "inference"
    inputs: str | None = None
    batch: int = 32
    weights: str = "random"
    optimizer: str = "sgd"
    autocast: str | None = None
