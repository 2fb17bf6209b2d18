"""Scalars to TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuledger.integrations.scalars import load_logger


class TensorBoardSink:
    """Writes scalars into a log directory, as ``tensorboard --logdir`` reads them."""

    def __init__(self, directory: str | Path) -> None:
        self._writer = load_logger("tensorboard.summary", "tensorboard").Writer(str(directory))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values under their names at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()
