"""Scalars to Weights & Biases, offline unless a run is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuledger.integrations.scalars import load_logger


class WandbSink:
    """Logs into ``run``, which stays open, or into a new offline one below ``directory``."""

    def __init__(self, run: Any = None, *, project: str = "gpuledger", directory: str | Path = ".") -> None:
        self._own = run is None
        wandb = load_logger("wandb", "wandb")
        self._run = wandb.init(mode="offline", project=project, dir=str(directory)) if run is None else run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values under their names; the step is one of them, since a run's own step may be further on."""
        self._run.log({**values, "gpuledger/step": step})

    def close(self) -> None:
        """Finish the run if it is ours."""
        if self._own:
            self._run.finish()
