"""Scalars to MLflow, as metrics of a run in any store it tracks to, a local directory included."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from gpuledger.errors import UsageError
from gpuledger.integrations.scalars import load_logger

_HINT = "Use a URI such as sqlite:///mlflow.db, or set MLFLOW_ALLOW_FILE_STORE=true for a directory"


class MlflowSink:
    """Logs into the run ``run_id`` of ``store`` (a directory or a tracking URI), or into a new one that it ends.

    Raises:
        UsageError: MLflow is not installed, or does not open the store.
    """

    def __init__(self, store: str | Path, *, run_id: str | None = None, experiment: str = "gpuledger") -> None:
        mlflow = load_logger("mlflow", "mlflow")
        text = str(store)
        uri = text if "://" in text else Path(text).absolute().as_uri()
        try:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
        except mlflow.exceptions.MlflowException as error:
            raise UsageError(f"{text}: MLflow cannot open it: {str(error).split('. ')[0]}", hint=_HINT) from error
        self._metric = mlflow.entities.Metric
        self._own = run_id is None
        self.run_id: str = self._new_run(experiment) if run_id is None else run_id

    def _new_run(self, experiment: str) -> str:
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        return str(self._client.create_run(number).info.run_id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values under their names at a step."""
        now_ms = time.time_ns() // 1_000_000
        metrics = [self._metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics)

    def close(self) -> None:
        """End the run if it is ours."""
        if self._own:
            self._client.set_terminated(self.run_id)
