"""Scalars to Prometheus: gauges in a registry that is scraped, or a file for the node exporter's textfile collector."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuledger.integrations.scalars import load_logger

_REFUSED = re.compile(r"[^a-zA-Z0-9_:]")


class PrometheusSink:
    """Sets gauges in ``registry``, or in one of its own; ``textfile`` is written when it is closed.

    ``gpuledger/category/weight_bytes`` becomes ``gpuledger_category_weight_bytes``. A gauge holds the last value.
    """

    def __init__(self, registry: Any = None, *, textfile: str | Path | None = None) -> None:
        self._prometheus = load_logger("prometheus_client", "prometheus")
        self.registry = self._prometheus.CollectorRegistry() if registry is None else registry
        self._textfile = textfile
        self._gauges: dict[str, Any] = {}

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Set the gauges, and ``gpuledger_step`` to the step."""
        for name, value in {**values, "gpuledger/step": step}.items():
            self._gauge(name).set(value)

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            made = self._prometheus.Gauge(_REFUSED.sub("_", name), f"{name} of a gpuledger run", registry=self.registry)
            self._gauges[name] = made
        return self._gauges[name]

    def close(self) -> None:
        """Write the file, if one was asked for."""
        if self._textfile is not None:
            self._prometheus.write_to_textfile(str(self._textfile), self.registry)
