"""``torch.cuda`` for a program on the simulated GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.functions import CPU
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.gpu.sizes import caller
from gpuledger.simulate.traits import listed_traits
from gpuledger.units import format_bytes


class SimulatedStream:
    """A stream of the simulated GPU: a number that separates its allocations."""

    _count = 0

    def __init__(self, device: Any = None, priority: int = 0, *, number: int | None = None, **_how: Any) -> None:
        if number is None:
            SimulatedStream._count += 1
            number = SimulatedStream._count
        self.number = number
        self.priority = priority
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.cuda_stream = self.stream_id = number
        self.device_index = self.device.index
        self._before: list[Any] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedStream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def query(self) -> bool:
        """Return True: all work has finished."""
        return True

    def record_event(self, event: Any = None) -> Any:
        """Return an event."""
        return event or SimulatedEvent()

    def synchronize(self) -> None:
        """Do nothing: no work is running."""

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is captured."""
        return torch.cuda.is_current_stream_capturing()

    wait_event = wait_stream = lambda self, other: None


def graph_class(device: SimulatedDevice, say: Callable[[str], None]) -> type:
    """Return what stands for ``torch.cuda.CUDAGraph``: what is captured runs once, in a private pool.

    Source: aten/src/ATen/cuda/CUDAGraph.cpp. What is freed in a pool serves later requests of the same pool only. A
    replay allocates nothing.
    """

    class CapturedGraph:
        def __init__(self, keep_graph: bool = False) -> None:
            self._pool = 0

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_how: Any) -> None:
            self._pool = pool[1] if pool else new_pool()[1]
            device.capture(self._pool)
            say(
                f"{caller()}: a CUDA graph is captured. Its operators are counted once, with memory of their own that "
                "is kept. Replays need none."
            )

        def capture_end(self) -> None:
            device.pool = None

        def reset(self) -> None:
            device.allocator.private.discard(self._pool)

        def pool(self) -> tuple[int, int]:
            return 0, self._pool

        def _nothing(self, *_args: Any) -> None:
            return

        __del__ = reset
        replay = instantiate = enable_debug_mode = debug_dump = _nothing

    return CapturedGraph


_FIRST_POOL = 1 << 20
"""Larger than the numbers of streams."""


def new_pool() -> tuple[int, int]:
    """Return the handle of a new private pool."""
    SimulatedStream._count += 1
    return 0, _FIRST_POOL + SimulatedStream._count


class SimulatedEvent:
    """An event that has always completed."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        return

    def query(self) -> bool:
        """Return True: it has completed."""
        return True

    def elapsed_time(self, _other: Any) -> float:
        """Return one millisecond: nothing is timed."""
        return 1.0

    record = wait = synchronize = lambda self, stream=None: None


_DECIDED_BY = frozenset({"get_device_name", "get_device_properties", "get_device_capability", "mem_get_info"})


class CudaFacade:
    """Replaces functions of ``torch.cuda`` by those of a simulated device."""

    def __init__(self, device: SimulatedDevice, say: Callable[[str], None] = lambda _sentence: None) -> None:
        self.device = device
        self._say = say

    def _noted(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that notes the line of a script that asks which GPU it has, as it may decide by it."""

        def ask(*args: Any, **kwargs: Any) -> Any:
            place = caller()
            if "/site-packages/" not in place.file:
                self.device.elsewhere.approximate.update(set(listed_traits()) - {self.device.sizing.own})
                self._say(
                    f"{place}: torch.cuda.{name} returned that of the simulated GPU; the script may decide by it."
                )
            return answer(*args, **kwargs)

        return ask

    def install(self, patches: Patches) -> None:
        """Install the functions."""
        for name, answer in self._answers().items():
            if hasattr(torch.cuda, name):
                patches.put(torch.cuda, name, answer)
        for place in (torch.cuda.memory, torch.cuda.random):
            for name, answer in self._answers().items():
                if hasattr(place, name):
                    patches.put(place, name, answer)
        for name, answer in self._accelerator().items():
            if hasattr(torch.accelerator, name):
                patches.put(torch.accelerator, name, answer)
        if hasattr(torch._C, "_get_accelerator"):  # FSDP places parameters on this device
            patches.put(torch._C, "_get_accelerator", lambda *_check: torch.device("cuda"))
        captured = graph_class(self.device, self._say)
        for name, answer in (
            ("CUDAGraph", captured),
            ("graph_pool_handle", new_pool),
            ("is_current_stream_capturing", lambda: self.device.pool is not None),
        ):
            for place in (torch.cuda, torch.cuda.graphs):
                patches.put(place, name, answer)
        if not hasattr(torch._C, "_host_emptyCache"):  # a PyTorch for the CPU has none
            patches.put(torch._C, "_host_emptyCache", lambda: None)
        patches.put(subprocess.Popen, "__init__", self._noting_nvidia_smi(subprocess.Popen.__init__))
        patches.put(torch, "get_device_module", lambda device=None: torch.cuda)
        patches.put(torch, "Generator", _Generator)
        patches.put(torch.backends.cuda, "is_built", lambda: True)
        patches.put(torch.Tensor, "record_stream", self._record_stream)
        patches.put(torch.UntypedStorage, "resize_", self._resize(torch.UntypedStorage.resize_))

    def _noting_nvidia_smi(self, plain: Callable[..., None]) -> Callable[..., None]:
        def start(process: Any, args: Any, *others: Any, **kwargs: Any) -> None:
            plain(process, args, *others, **kwargs)
            if "nvidia-smi" in str(args):
                self._say(f"{caller()}: nvidia-smi described this machine's GPUs; the script may decide by it.")

        return start

    def _resize(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def resize_(storage: Any, size_bytes: int) -> Any:
            resized = plain(storage, size_bytes)
            self.device.resize(storage)
            return resized

        return resize_

    @property
    def _record_stream(self) -> Callable[[Any, Any], None]:
        device = self.device

        def record_stream(tensor: Any, stream: Any) -> None:
            device.record_stream(tensor, getattr(stream, "number", 0))

        return record_stream

    def _answers(self) -> dict[str, Any]:
        found = {**self._presence(), **self._memory(), **self._seeds(), **self._streams()}
        return {name: self._noted(name, answer) if name in _DECIDED_BY else answer for name, answer in found.items()}

    def _presence(self) -> dict[str, Any]:
        card = self.device.card
        properties = SimpleNamespace(
            name=card.name,
            major=card.compute_capability[0],
            minor=card.compute_capability[1],
            total_memory=card.available_bytes,
            multi_processor_count=card.multiprocessors,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            is_integrated=False,
            is_multi_gpu_board=False,
            gcnArchName="",
            L2_cache_size=50 << 20,
            shared_memory_per_block_optin=232_448,
        )
        return {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: self.device.count,
            "current_device": lambda: self.device.place.index,
            "set_device": self.device.set_place,
            "init": lambda: None,
            "_lazy_init": lambda: None,
            "_lazy_call": lambda callback, **_how: callback(),
            "synchronize": lambda device=None: self.device.finish_streams(),
            "get_device_name": lambda device=None: card.name,
            "get_device_capability": lambda device=None: card.compute_capability,
            "get_device_properties": lambda device=None: properties,
            "get_arch_list": lambda: ["sm_{}{}".format(*card.compute_capability)],
            "is_bf16_supported": lambda *_args, **_kwargs: card.compute_capability >= (8, 0),
            "is_current_stream_capturing": lambda: self.device.pool is not None,
            "can_device_access_peer": lambda *_: False,
            "utilization": lambda device=None: 0,
            "device": lambda device=None: nullcontext(),
            "device_of": lambda tensor: nullcontext(),
            "ipc_collect": lambda: None,
        }

    def _memory(self) -> dict[str, Any]:
        counters = self.device.counters
        return {
            "empty_cache": self.device.empty_cache,
            "memory_allocated": lambda device=None: counters.allocated_bytes,
            "max_memory_allocated": lambda device=None: max(self._peaks()[0], counters.allocated_bytes),
            "memory_reserved": lambda device=None: counters.reserved_bytes,
            "memory_cached": lambda device=None: counters.reserved_bytes,
            "max_memory_reserved": lambda device=None: self._peaks()[1],
            "max_memory_cached": lambda device=None: self._peaks()[1],
            "reset_peak_memory_stats": lambda device=None: counters.reset_peaks(),
            "reset_max_memory_allocated": lambda device=None: counters.reset_peaks(),
            "reset_max_memory_cached": lambda device=None: counters.reset_peaks(),
            "reset_accumulated_memory_stats": lambda device=None: None,
            "memory_stats": lambda device=None: self._statistics(),
            "memory_stats_as_nested_dict": lambda device=None: {},
            "memory_summary": lambda device=None, abbreviated=False: "simulated GPU",
            "memory_snapshot": lambda *_args, **_kwargs: [],
            "mem_get_info": lambda device=None: self._free_and_total(),
            "set_per_process_memory_fraction": self._limited,
            "get_per_process_memory_fraction": lambda device=None: self.device.limit_frac,
            "get_allocator_backend": lambda: "native",
            "_record_memory_history": lambda *_args, **_kwargs: None,
        }

    def _limited(self, fraction: float, device: Any = None) -> None:
        self.device.limit_frac = fraction
        self._say(
            f"{caller()}: torch.cuda.set_per_process_memory_fraction limits the program to "
            f"{format_bytes(self.device.allowed_bytes)}. The verdict is for this limit."
        )

    def _peaks(self) -> tuple[int, int]:
        """Return the peaks since the program has reset them. The estimate keeps those of the whole program."""
        counters = self.device.counters
        return counters.recent_peak_allocated_bytes, counters.recent_peak_reserved_bytes

    def _statistics(self) -> dict[str, int]:
        counters = self.device.counters
        allocated, reserved = self._peaks()
        found = {"num_alloc_retries": counters.retries, "num_ooms": self.device.memory_errors}
        for name, now, peak in (
            ("allocated_bytes", counters.allocated_bytes, allocated),
            ("active_bytes", counters.active_bytes, allocated),
            ("requested_bytes", counters.requested_bytes, allocated),
            ("reserved_bytes", counters.reserved_bytes, reserved),
            ("inactive_split_bytes", 0, 0),
        ):
            for pool in ("all", "large_pool", "small_pool"):
                found |= {f"{name}.{pool}.current": now, f"{name}.{pool}.peak": peak}
        return found

    def _free_and_total(self) -> tuple[int, int]:
        card = self.device.card
        used = card.outside_bytes + self.device.counters.reserved_bytes
        return max(card.available_bytes - used, 0), card.available_bytes

    def _seeds(self) -> dict[str, Any]:
        def state(device: Any = None) -> Any:
            return torch.get_rng_state()

        def nothing(*_args: Any, **_kwargs: Any) -> None:
            return

        return {
            "manual_seed": nothing,
            "manual_seed_all": nothing,
            "seed": nothing,
            "seed_all": nothing,
            "initial_seed": lambda: 0,
            "get_rng_state": state,
            "get_rng_state_all": lambda: [state()],
            "set_rng_state": nothing,
            "set_rng_state_all": nothing,
        }

    def _streams(self) -> dict[str, Any]:
        device = self.device

        @contextmanager
        def on_stream(stream: Any) -> Any:
            here = device.of_thread
            before, here.stream = here.stream, getattr(stream, "number", here.stream)
            try:
                yield
            finally:
                here.stream = before

        def set_stream(stream: Any) -> None:
            device.of_thread.stream = stream.number

        return {
            "Stream": SimulatedStream,
            "ExternalStream": SimulatedStream,
            "Event": SimulatedEvent,
            "stream": on_stream,
            "StreamContext": on_stream,
            "set_stream": set_stream,
            "current_stream": lambda device_=None: SimulatedStream(number=device.stream),
            "default_stream": lambda device_=None: SimulatedStream(number=0),
        }

    def _accelerator(self) -> dict[str, Callable[..., Any]]:
        return {
            "is_available": lambda: True,
            "device_count": lambda: self.device.count,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: self.device.place.index,
            "current_device_idx": lambda: self.device.place.index,
            "set_device_index": self.device.set_place,
            "set_device_idx": self.device.set_place,
            "synchronize": lambda device=None: None,
            "current_stream": lambda device=None: SimulatedStream(number=self.device.stream),
        }


class _Generator(torch._C.Generator):
    """A generator for a GPU. It is one of the CPU, because no values are drawn."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator.__new__(torch._C.Generator, CPU)  # type: ignore[call-arg]  # torch's stub has none
