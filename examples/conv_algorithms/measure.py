"""Times, bytes and correctness of every convolution of a forward; one class each, which the network calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from convolutions import ALGORITHMS, convolve_layer
from network import VGG19, Layer
from torch.nn import functional

TIMES = ("total_ms", "conv_ms", "overhead_ms")


@dataclass(frozen=True)
class LayerTime:
    """Milliseconds of one layer; overhead is the total without the product stage."""

    conv_ms: float
    total_ms: float


@dataclass(frozen=True)
class LayerBytes:
    """The highest allocated bytes inside one layer, and what of them it took itself, its output included."""

    peak_bytes: int
    taken_bytes: int


@dataclass
class LayerTimes:
    """Times each layer between marks on the device's own time line.

    Source: CUDA events, so time in which the GPU waits for the host is included; on a CPU the host's clock.
    """

    algorithm: str
    mode: str
    on_cuda: bool
    _marks: list[tuple[Any, Any, list[tuple[Any, Any]]]] = field(default_factory=list)

    def convolve(self, layer: Layer, images: torch.Tensor) -> torch.Tensor:
        """Return the layer's convolution; marks its beginning, its product stages and its end."""
        products: list[tuple[Any, Any]] = []

        @contextmanager
        def product() -> Iterator[None]:
            begin = self._mark()
            yield
            products.append((begin, self._mark()))

        begin = self._mark()
        output = convolve_layer(ALGORITHMS[self.algorithm], self.mode, images, layer.weight, product)
        self._marks.append((begin, self._mark(), products))
        return output

    def read(self) -> list[LayerTime]:
        """Return a time for each layer so far, once the device is there."""
        return [
            LayerTime(sum(self._elapsed_ms(*pair) for pair in products), self._elapsed_ms(begin, end))
            for begin, end, products in self._marks
        ]

    def _mark(self) -> Any:
        if not self.on_cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _elapsed_ms(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) if self.on_cuda else (end - begin) / 1e6


@dataclass
class LayerMemory:
    """Reads the caching allocator's peak in each layer and in the whole forward. For CUDA only.

    Source: the allocator's own counters, exact; without context, libraries and what is reserved but free.
    """

    algorithm: str
    mode: str
    standing_bytes: int = field(default_factory=torch.cuda.memory_allocated)
    peak_bytes: int = 0
    layers: list[LayerBytes] = field(default_factory=list)

    def convolve(self, layer: Layer, images: torch.Tensor) -> torch.Tensor:
        """Return the layer's convolution; the peak counter begins anew before and after it."""
        self.restart()
        before_bytes = torch.cuda.memory_allocated()
        output = convolve_layer(ALGORITHMS[self.algorithm], self.mode, images, layer.weight, nullcontext)
        peak_bytes = torch.cuda.max_memory_allocated()
        self.layers.append(LayerBytes(peak_bytes, peak_bytes - before_bytes))
        self.restart()
        return output

    def restart(self) -> None:
        """Keep the peak so far and let the allocator count a new one."""
        self.peak_bytes = max(self.peak_bytes, torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()


@dataclass
class LayerDifferences:
    """Holds each layer against the library's convolution of the same input."""

    algorithm: str
    mode: str
    differences: list[float] = field(default_factory=list)

    def convolve(self, layer: Layer, images: torch.Tensor) -> torch.Tensor:
        """Return the library's convolution; notes the largest absolute difference from it."""
        expected = functional.conv2d(images, layer.weight, padding=1)
        found = convolve_layer(ALGORITHMS[self.algorithm], self.mode, images, layer.weight, nullcontext)
        self.differences.append(float((found - expected).abs().max()))
        return expected


def measure(
    network: VGG19, images: torch.Tensor, algorithm: str, mode: str, repeats: int, least_s: float, most_s: float
) -> dict[str, Any]:
    """Return times in milliseconds (medians over the forwards) and bytes of one algorithm, as plain values.

    One forward warms up and one counts bytes; neither is timed. Then come ``repeats`` timed forwards, more until
    ``least_s`` seconds have passed and fewer once ``most_s`` have. ``bytes`` are None on a CPU.
    """
    on_cuda = images.is_cuda
    network.forward(images, LayerTimes(algorithm, mode, on_cuda).convolve)
    memory = measure_memory(network, images, algorithm, mode) if on_cuda else None
    forwards: list[list[LayerTime]] = []
    whole_ms: list[float] = []
    started_s = time.monotonic()
    while len(forwards) < repeats or time.monotonic() - started_s < least_s:
        if forwards and time.monotonic() - started_s > max(least_s, most_s):
            break
        begin_ns = time.perf_counter_ns()
        times = LayerTimes(algorithm, mode, on_cuda)
        network.forward(images, times.convolve)
        wait(images.device)
        whole_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
        forwards.append(times.read())
    layers = list_costs(network, forwards, memory)
    return {
        "algorithm": algorithm,
        "mode": mode,
        "batch": len(images),
        "forwards": len(forwards),
        "forward_ms": round(statistics.median(whole_ms), 4),
        **{key: round(sum(layers[key]), 4) for key in TIMES},
        "peak_bytes": memory.peak_bytes if memory else None,
        "standing_bytes": memory.standing_bytes if memory else None,
        "layers": layers,
    }


def measure_memory(network: VGG19, images: torch.Tensor, algorithm: str, mode: str) -> LayerMemory:
    """Return the bytes of one forward; the allocator's cache is emptied before, so that no block is reused whole."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    memory = LayerMemory(algorithm, mode)
    network.forward(images, memory.convolve)
    memory.restart()
    return memory


def list_costs(network: VGG19, forwards: list[list[LayerTime]], memory: LayerMemory | None) -> dict[str, list[Any]]:
    """Return columns with an entry for each layer: its medians over the forwards, and its bytes."""
    by_layer = list(zip(*forwards, strict=True))
    total_ms = [round(statistics.median(time.total_ms for time in times), 4) for times in by_layer]
    conv_ms = [round(statistics.median(time.conv_ms for time in times), 4) for times in by_layer]
    unknown = [None] * len(by_layer)
    return {
        "layer": [layer.name for layer in network.convolutions],
        "conv_ms": conv_ms,
        "overhead_ms": [round(total - conv, 4) for total, conv in zip(total_ms, conv_ms, strict=True)],
        "total_ms": total_ms,
        "peak_bytes": [layer.peak_bytes for layer in memory.layers] if memory else unknown,
        "taken_bytes": [layer.taken_bytes for layer in memory.layers] if memory else unknown,
    }


def time_log_lines(result: dict[str, Any]) -> str:
    """Return ``ALGORITHM, BATCH, KIND, ms of each layer…`` for total, product and overhead, a line each.

    The format of the time logs of HP3-CNN-Inferencing, which ``gpuledger plot`` draws.
    """
    name = result["algorithm"] if result["mode"] == "batched" else f"{result['algorithm']}-{result['mode']}"
    rows = ([name.upper(), result["batch"], key[:-3].upper(), *result["layers"][key]] for key in TIMES)
    return "".join(", ".join(map(str, row)) + "\n" for row in rows)


def wait(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def use_exact_float32() -> None:
    """Switch TF32 off, for cuDNN and for matrix products: its ten bits of mantissa are not within 1e-3."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
