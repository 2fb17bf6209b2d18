"""Sizes of what cuDNN's recurrent layers allocate: the reserve kept for backward, and the workspace."""

from __future__ import annotations

import csv
import heapq
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import NamedTuple

RELU, TANH, LSTM, GRU = range(4)
"""cuDNN's numbers of the kinds."""

_GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
_KEPT_WIDTHS = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}
"""Kept for backward per layer, in multiples of the hidden size: gates, cells, a GRU's recurrent half."""

_HANDLE_BYTES = 8 << 20
"""Part of the workspace for each layer and direction, whatever its size."""

_SIMILAR = 5
"""Measured layers that a workspace is taken from."""

_MEASURED = "recurrent_workspaces.csv"


@dataclass(frozen=True)
class RecurrentShape:
    """The sizes of one call of cuDNN's recurrent layers.

    Args:
        kind: :data:`RELU`, :data:`TANH`, :data:`LSTM` or :data:`GRU`.
        item_bytes: Bytes of a number: 2 or 4.
        directions: 1, or 2 for a bidirectional layer.
        layers: Number of layers.
        rows: Rows of the input: length times batch, or the rows of a packed sequence.
        batch: Sequences.
        inputs: Width of the input.
        hidden: Hidden size.
        projection: Size of the projected output; 0 without a projection.
        drops: Whether dropout between the layers is applied.
        has_biases: Whether the layers have biases.
        longest: Steps of the longest packed sequence; 0 if the sequences are not packed.
    """

    kind: int
    item_bytes: int
    directions: int
    layers: int
    rows: int
    batch: int
    inputs: int
    hidden: int
    projection: int = 0
    drops: bool = False
    has_biases: bool = True
    longest: int = 0

    @property
    def width(self) -> int:
        """Return the width of one direction's output."""
        return self.projection or self.hidden

    @cached_property
    def output_bytes(self) -> int:
        """Return the bytes of the output."""
        return self.rows * self.width * self.directions * self.item_bytes

    @cached_property
    def reserve_bytes(self) -> int:
        """Return the bytes that forward saves for backward: per layer, between layers, and dropout masks.

        Source: equal to the byte in all 982 trainings without packed sequences of
        bench/estimate/results/h200/recurrent_fit.json (an H200, cuDNN 9.19), and in 159 of 167 with them.
        """
        widths = _KEPT_WIDTHS[self.kind] * self.hidden
        if self.projection:
            widths += self.hidden + self.projection
        kept = self.rows * self.directions * self.item_bytes * (widths * self.layers + self.hidden * (self.layers - 1))
        return _rounded_up(kept) + self._mask_bytes + 256

    @property
    def _mask_bytes(self) -> int:
        """Return the bytes of dropout masks: one bit per number and direction, padding of packed sequences included."""
        if not self.drops or self.layers == 1:
            return 0
        rows = self.longest * self.batch or self.rows
        mask = _rounded_up(-(-rows * self.width * self.directions // 8))
        return mask * self.directions * (self.layers - 1)

    @cached_property
    def weights_bytes(self) -> int:
        """Return the bytes of weights and biases."""
        numbers, inputs = 0, self.inputs
        for _ in range(self.layers):
            numbers += _GATES[self.kind] * self.hidden * (inputs + self.width + 2 * self.has_biases)
            numbers += self.hidden * self.projection
            inputs = self.width * self.directions
        return numbers * self.directions * self.item_bytes

    @cached_property
    def workspace_bytes(self) -> int:
        """Return the workspace in bytes: a copy of the weights, a part per layer and direction, and layouts of data.

        cuDNN chooses among several algorithms, each with its own layouts of data. Their bytes are those of similar
        measured layers, in proportion.

        Source: two measurements on an H200 with cuDNN 9.19. Their errors for layers that were not in the table are in
        bench/estimate/results/h200/recurrent_fit.json.
        """
        return self.workspace_from(measured_layers())

    def workspace_from(self, layers: Iterable[MeasuredLayer]) -> int:
        """Return the median workspace of the most similar layers; that of the same layer, if it is among them.

        The number of layers was chosen with two measurements, each held to the table of the other.
        """
        nearest = heapq.nsmallest(_SIMILAR, layers, key=lambda one: self.distance(one.shape))
        alike = [one for one in nearest if math.isfinite(self.distance(one.shape))]
        if self.distance(alike[0].shape) == 0:
            return self._workspace_like(alike[0])
        return int(statistics.median(self._workspace_like(one) for one in alike))

    def _workspace_like(self, other: MeasuredLayer) -> int:
        """Return the workspace if this layer runs as a measured one does."""
        layouts_bytes = max(other.workspace_bytes - other.shape._constant_bytes, 0)
        return self._constant_bytes + int(layouts_bytes * self._layouts / other.shape._layouts)

    def distance(self, other: RecurrentShape) -> float:
        """Return how unlike two layers are, on a logarithmic scale of their sizes."""
        kind, its_kind = max(self.kind, TANH), max(other.kind, TANH)
        if (kind, self.directions) != (its_kind, other.directions):
            return math.inf
        length, its_length = self.rows / self.batch, other.rows / other.batch
        return (
            1.5 * abs(math.log2(self.hidden / other.hidden))
            + 0.7 * abs(math.log2(length / its_length))
            + 0.7 * abs(math.log2(self.batch / other.batch))
            + 0.5 * abs(math.log2(self.inputs / other.inputs))
            + 0.3 * abs(self.layers - other.layers)
            + 0.5 * ((self.layers > 1) != (other.layers > 1))
            + 4.0 * (self.item_bytes != other.item_bytes)
            + 2.0 * (bool(self.projection) != bool(other.projection))
        )

    @property
    def _constant_bytes(self) -> int:
        return self.weights_bytes + _HANDLE_BYTES * self.layers * self.directions

    @property
    def _layouts(self) -> int:
        """Return a size that the layouts of data are in proportion to, for one algorithm."""
        widths = 3 * self.inputs + 4 * self.hidden * (1 if self.directions == 1 else 3)
        return (self.rows * widths + 10 * self.batch * self.hidden) * self.item_bytes


def _rounded_up(size: int) -> int:
    return -(-size // 32) * 32


class MeasuredLayer(NamedTuple):
    """A layer that was measured on an H200."""

    shape: RecurrentShape
    workspace_bytes: int
    reserve_bytes: int
    """0 for inference."""


@cache
def measured_layers() -> list[MeasuredLayer]:
    """Return the measured layers, which bench/estimate/recurrent_fit.py has written."""
    with files("gpuledger.simulate.gpu").joinpath(_MEASURED).open(encoding="utf-8") as file:
        return [_measured_layer(*map(int, row)) for row in csv.reader(file) if row[0].isdigit()]


def _measured_layer(*row: int) -> MeasuredLayer:
    *sizes, drops, has_biases, longest, workspace_bytes, reserve_bytes = row
    kind, item_bytes, directions, layers, rows, batch, inputs, hidden, projection = sizes
    shape = RecurrentShape(
        kind,
        item_bytes,
        directions,
        layers,
        rows,
        batch,
        inputs,
        hidden,
        projection,
        bool(drops),
        bool(has_biases),
        longest,
    )
    return MeasuredLayer(shape, workspace_bytes, reserve_bytes)
