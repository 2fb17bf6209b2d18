"""Sizes of what cuDNN's recurrent layers allocate: the reserve kept for backward, and the workspaces.

The workspaces consist of copies of the weights and of layouts of the data, which depend on the algorithm. torch chooses
it by kind, hidden size and dtype. The numbers of layouts are whole numbers that were found in two measurements of an
H200 with cuDNN 9.19. A third one, of hidden sizes from 112 to 200 in half precision, came after them.
``bench/estimate/recurrent_fit.py`` compares them with each measured layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

RELU, TANH, LSTM, GRU = range(4)
"""cuDNN's numbers of the kinds."""

_GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
_KEPT_WIDTHS = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}
"""Kept for backward per layer, in multiples of the hidden size: gates, cells, a GRU's recurrent half."""

_HANDLE_BYTES = 8 << 20
"""Part of the workspace for each layer and direction, whatever its size."""

_HEADER_BYTES = 256
"""Smallest rest of a workspace that is none of its parts."""

STANDARD, SMALL, PERSISTENT = "standard", "persistent, small hidden size", "persistent"
"""Algorithms of cuDNN."""

_WIDEST_SMALL = {RELU: (384, 256), TANH: (384, 256), LSTM: (192, 128), GRU: (192, 128)}
"""Largest hidden size of the algorithm for small ones, forward and backward."""

_CHUNK_STEPS = 8
"""With several layers in one direction, backward keeps a layout of about this number of steps for each layer."""

_TILE, _WIDEST_PERSISTENT, _MOST_SEQUENCES = 128, 1024, 128
_MANY_SEQUENCES, _WIDE = 96, 896


class _Layouts(NamedTuple):
    """Layouts in a workspace of one layer, in one (first number) or two directions (second number).

    ``forward`` and ``backward`` count buffers of rows x hidden size, ``of_layers`` those that are added from two layers
    on. ``states`` count buffers of sequences x hidden size for each layer.
    """

    forward: tuple[int, int]
    forward_states: tuple[int, int]
    backward: tuple[int, int]
    of_layers: tuple[int, int]
    backward_states: tuple[int, int]


_STANDARD = {
    TANH: _Layouts((1, 6), (1, 6), (1, 2), (0, 2), (1, 6)),
    GRU: _Layouts((3, 10), (3, 10), (1, 2), (0, 2), (1, 6)),
    LSTM: _Layouts((4, 12), (6, 16), (1, 2), (0, 2), (3, 10)),
}
_SMALL = {
    TANH: _Layouts((6, 12), (4, 10), (12, 15), (1, 2), (6, 14)),
    GRU: _Layouts((16, 24), (4, 10), (17, 20), (1, 2), (6, 14)),
    LSTM: _Layouts((21, 30), (8, 18), (15, 18), (1, 2), (12, 26)),
}


@dataclass(frozen=True)
class RecurrentShape:
    """The sizes of one call of cuDNN's recurrent layers.

    Args:
        kind: :data:`RELU`, :data:`TANH`, :data:`LSTM` or :data:`GRU`.
        item_bytes: Bytes of a number: 2, 4 or 8.
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
        is_bfloat16: Whether the numbers are bfloat16.
        trains: Whether forward saves a reserve for backward.
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
    is_bfloat16: bool = False
    trains: bool = True

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

        Source: equal to the byte in all 1,377 trainings without packed sequences of
        bench/estimate/results/h200/recurrent_fit.json (an H200, cuDNN 9.19), and in 226 of 235 with them.
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
        return self._matrices_bytes + self.biases_bytes * self.has_biases

    @property
    def biases_bytes(self) -> int:
        """Return the bytes of the biases, if the layers have them."""
        return 2 * _GATES[self.kind] * self.hidden * self.layers * self.directions * self.item_bytes

    @property
    def _matrices_bytes(self) -> int:
        numbers, inputs = 0, self.inputs
        for _ in range(self.layers):
            numbers += _GATES[self.kind] * self.hidden * (inputs + self.width) + self.hidden * self.projection
            inputs = self.width * self.directions
        return numbers * self.directions * self.item_bytes

    def algorithm(self, *, backward: bool = False) -> str:
        """Return the algorithm that torch chooses: :data:`STANDARD`, :data:`SMALL` or :data:`PERSISTENT`.

        Source: get_algo in aten/src/ATen/native/cudnn/RNN.cpp, for GPUs from compute capability 6 on.
        """
        if self.projection or self.longest or self.item_bytes > 4:
            return STANDARD
        if self.hidden <= _WIDEST_SMALL[self.kind][backward]:
            return SMALL
        is_half = self.item_bytes == 2 and not self.is_bfloat16
        single = self.layers == self.directions == 1
        tiled = self.hidden % _TILE == self.inputs % _TILE == 0 and self.hidden <= _WIDEST_PERSISTENT
        if is_half and single and tiled and self.kind != GRU and self._suits_persistent:
            return PERSISTENT
        return STANDARD

    @property
    def _suits_persistent(self) -> bool:
        is_fast = self.kind == LSTM or self.batch < _MANY_SEQUENCES or self.hidden < _WIDE
        return self.batch % 8 == 0 and self.batch <= _MOST_SEQUENCES and is_fast

    def workspace_bytes(self, *, backward: bool = False) -> int:
        """Return the workspace in bytes: a copy of the weights, a part per layer and direction, and layouts of data.

        Args:
            backward: Whether the workspace is of a backward call, which may have another algorithm.

        Source: within 0.3 % of 1,791 of 1,861 measured layers (bench/estimate/results/h200/recurrent_fit.json).
        """
        layouts_bytes = self._forward_bytes(backward)
        if self.trains:
            layouts_bytes = max(layouts_bytes, self._backward_bytes(backward))
        return self._matrices_bytes + _HANDLE_BYTES * self.layers * self.directions + layouts_bytes + _HEADER_BYTES

    def _layouts(self, backward: bool) -> tuple[_Layouts, bool]:
        """Return the layouts of the algorithm, and whether they are those of the standard one.

        For small hidden sizes in bfloat16, cuDNN uses the standard layouts.
        """
        chosen = self.algorithm(backward=backward)
        standard = chosen == STANDARD or (chosen == SMALL and self.is_bfloat16)
        return (_STANDARD if standard else _SMALL)[max(self.kind, TANH)], standard

    @property
    def _buffers(self) -> tuple[int, int, int, int]:
        """Return the bytes of one buffer of hidden rows, of output rows, of input rows, and of hidden states."""
        row_bytes = self.rows * self.item_bytes
        states_bytes = self.batch * self.hidden * self.item_bytes * self.layers
        return row_bytes * self.hidden, row_bytes * self.width, row_bytes * self.inputs, states_bytes

    def _unpacked_bytes(self) -> int:
        """Return the bytes of packed input, output and states. Packed sequences need none."""
        if self.longest:
            return 0
        _, outputs, inputs, states = self._buffers
        projected = states * self.width // self.hidden
        of_states = 2 * (projected + (states if self.kind == LSTM else 0))
        return self.directions * (outputs + of_states) + inputs

    def _forward_bytes(self, backward: bool) -> int:
        layouts, standard = self._layouts(backward)
        hidden, outputs, inputs, states = self._buffers
        way = self.directions - 1
        count = layouts.forward[way] + (self.directions if self.projection else 0)
        size = count * hidden + layouts.forward_states[way] * states
        if self.drops and self.layers > 1 and self.directions == 1:
            size += outputs
        return size + (self._unpacked_bytes() if standard else inputs)

    def _backward_bytes(self, backward: bool) -> int:
        layouts, standard = self._layouts(backward)
        hidden, outputs, inputs, states = self._buffers
        way = self.directions - 1
        count = layouts.backward[way] + (layouts.of_layers[way] if self.layers > 1 else 0)
        if self.projection:
            count += self.directions
        size = count * hidden + (1, 4)[way] * max(outputs, inputs) + layouts.backward_states[way] * states
        if standard and self.directions == 1 and self.layers > 1:
            size -= hidden - min(hidden, _CHUNK_STEPS * (self.layers + 1) * states // self.layers)
        return size + 2 * (self._unpacked_bytes() if standard else inputs)


def _rounded_up(size: int) -> int:
    return -(-size // 32) * 32
