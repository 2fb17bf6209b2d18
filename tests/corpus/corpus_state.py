"""What a program of the corpus can see of its own process, as JSON: equal bare and recorded.

The runner puts this file's directory on PYTHONPATH and names the file to write in ``CORPUS_STATE``. It imports nothing
that the program has not imported: a program without torch stays one.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import signal
import sys
import sysconfig
import threading
import time
import types
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

PLACE = os.environ.get("CORPUS_STATE")
DEVICE = os.environ.get("CORPUS_DEVICE", "cpu")
"""Where a program that runs on several devices puts its tensors."""
_STANDARD = sysconfig.get_path("stdlib")


def report(label: str = "end", *, model: Any = None, recording_over: bool = False, **more: Any) -> None:
    """Add one line of JSON to the file that the runner compares.

    Args:
        label: What the line is called; a program that reports several times, or in several processes, names each.
        model: A module, a tensor, or lists and dictionaries of them, whose values and gradients are hashed.
        recording_over: Whether a recording with default options has ended by now, so that nothing of it may be left:
            some 20 steps after the first, or after a window and passes that cannot begin.
        more: Anything of the program's own, as JSON; numbers whose name begins with ``depth`` may differ by two frames.
    """
    torch = sys.modules.get("torch")
    _let_feeders_end()
    state = {"label": label, **more, "process": _process(), "python": _python()}
    if model is not None:
        state["weights"], state["gradients"] = _hash_tensors(model)
    if torch is not None:
        state["torch"] = _torch_modes(torch)
    state["random"] = _random_states(torch)
    if recording_over:
        state["patched"] = sorted(_patched(torch))
        state["hooks"] = _global_hooks(torch) if torch is not None else {}
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _cuda(torch)
    if PLACE is None:
        print(json.dumps(state, indent=1, sort_keys=True), file=sys.stderr)
        return
    line = json.dumps(state, sort_keys=True, default=repr) + "\n"
    place = os.open(PLACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(place, line.encode())
    os.close(place)


def seed() -> None:
    """Seed every random generator that is loaded, so that a stream used by somebody else shows."""
    import random

    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def depth_reachable() -> int:
    """Return how many plain Python calls fit above the caller before RecursionError."""

    def deeper(depth: int) -> int:
        try:
            return deeper(depth + 1)
        except RecursionError:
            return depth

    return deeper(0)


# -- the process and the interpreter ------------------------------------------------------------------------------


def _process() -> dict[str, Any]:
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "native_threads": sorted(_native_threads()),
        "descriptors": sorted(_descriptors()),
        "signals": {one.name: _told(signal.getsignal(one)) for one in signal.Signals if one.name != "SIGRTMIN"},
        "signal_mask": sorted(int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "interval_timer": signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0),
        "directory": _directory(),
        "umask": _umask(),
    }


def _let_feeders_end() -> None:
    """Wait a moment for the threads of queues that are closed, as those of data loaders: they end by themselves."""
    ends_s = time.monotonic() + 10.0
    while time.monotonic() < ends_s and any("QueueFeeder" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)


def _native_threads() -> Iterator[str]:
    """Yield their names. A thread that was joined leaves the kernel's list a moment later, or when it has its turn."""
    begun_s = time.monotonic()
    while len(os.listdir("/proc/self/task")) > threading.active_count():
        waited_s = time.monotonic() - begun_s
        if waited_s > 10 or (waited_s > 0.2 and not _is_another_running()):
            break
        time.sleep(0.01)
    for number in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{number}/comm") as stream:
                yield stream.read().strip()
        except OSError:  # it has ended in between
            continue


def _is_another_running() -> bool:
    """Return whether another thread runs, or waits for a processor."""
    for number in set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}:
        with suppress(OSError), open(f"/proc/self/task/{number}/stat") as stream:
            if stream.read().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _descriptors() -> Iterator[str]:
    directory = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        for name in os.listdir(directory):
            if int(name) == directory:
                continue
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:  # closed by another thread in between
                continue
            yield re.sub(r"(?<=cuda\.shm\.)[0-9a-f.]+|\d{3,}", "N", target)  # the first names the process
    finally:
        os.close(directory)


def _python() -> dict[str, Any]:
    return {
        "depth": depth_reachable(),
        "recursion_limit": sys.getrecursionlimit(),
        "switch_interval_s": sys.getswitchinterval(),
        "trace": _told(sys.gettrace()),
        "profile": _told(sys.getprofile()),
        "thread_trace": _told(threading.gettrace()),
        "thread_profile": _told(threading.getprofile()),
        "excepthook": _told(sys.excepthook),
        "thread_excepthook": _told(threading.excepthook),
        "unraisablehook": _told(sys.unraisablehook),
        "displayhook": _told(sys.displayhook),
        "showwarning": _told(warnings.showwarning),
        "warning_filters": [str(one) for one in warnings.filters],
        "path": list(sys.path),
        "meta_path": [_told(one) for one in sys.meta_path],
        "path_hooks": [_told(one) for one in sys.path_hooks],
        "arguments": list(sys.argv),
        "gc": [gc.isenabled(), gc.get_threshold(), [_told(one) for one in gc.callbacks]],
        "streams": [_told(sys.stdin), _told(sys.stdout), _told(sys.stderr)],
    }


def _told(value: Any) -> str | None:
    """Return a hook or an object in words that are the same in another process."""
    if value is None or isinstance(value, int | str):
        return None if value is None else str(value)
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{code.co_qualname} in {os.path.basename(code.co_filename)}"
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', None) or type(value).__module__}.{name}"


def _random_states(torch: Any) -> dict[str, str]:
    found = {}
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy")
    if random is not None:
        found["python"] = _digest(repr(random.getstate()).encode())
    if numpy is not None and "numpy.random" in sys.modules:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = _digest(kind.encode(), keys.tobytes(), repr(rest).encode())
    if torch is not None:
        with torch._C.DisableTorchFunction():
            found["torch"] = _digest(bytes(torch.default_generator.get_state().tolist()))
    return found


def _digest(*pieces: bytes) -> str:
    return hashlib.sha256(b"\0".join(pieces)).hexdigest()[:16]


# -- torch --------------------------------------------------------------------------------------------------------


def _hash_tensors(model: Any) -> tuple[str, str]:
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction(), torch.no_grad():
        tensors = list(_tensors(torch, model))
        values = _digest(*(_tensor_bytes(torch, tensor) for tensor in tensors))
        leaves = [tensor.grad if tensor.is_leaf else None for tensor in tensors]
        gradients = _digest(*(b"none" if grad is None else _tensor_bytes(torch, grad) for grad in leaves))
    return values, gradients


def _tensors(torch: Any, value: Any) -> Iterator[Any]:
    """Yield the tensors of modules, lists and dictionaries, without calling anything that a module may override."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        for kind in ("_parameters", "_buffers", "_modules"):
            yield from _tensors(torch, dict(value.__dict__[kind]))
    elif isinstance(value, dict):
        for key in value:
            yield from _tensors(torch, value[key])
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from _tensors(torch, one)


def _tensor_bytes(torch: Any, tensor: Any) -> bytes:
    head = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    if tensor.is_meta or isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return head
    plain = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    plain = plain.cpu().resolve_conj().resolve_neg().contiguous()
    return head + bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else head


def _torch_modes(torch: Any) -> dict[str, Any]:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "default_dtype": str(torch.get_default_dtype()),
        "default_device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "anomaly": torch.is_anomaly_enabled(),
        "autocast_cpu": torch.is_autocast_enabled("cpu"),
        "function_modes": torch._C._len_torch_function_stack(),
        "multithreaded_backward": torch.autograd.is_multithreading_enabled(),
    }


def _global_hooks(torch: Any) -> dict[str, int]:
    module, optimizer = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    names = [name for name in vars(module) if name.startswith("_global_") and isinstance(vars(module)[name], dict)]
    counts = {name: len(vars(module)[name]) for name in names}
    counts["optimizer_pre"] = len(optimizer._global_optimizer_pre_hooks)
    counts["optimizer_post"] = len(optimizer._global_optimizer_post_hooks)
    counts["dispatch_modes"] = torch._C._len_torch_dispatch_stack()
    counts["saved_tensors"] = int(torch._C._autograd._top_saved_tensors_default_hooks(True) is not None)
    return counts


_WATCHED = re.compile(
    r"torch(\.nn\.modules\.module|\.autograd(\.\w+)?|\.optim(\.\w+)?|\.cuda(\.\w+)?|\.profiler(\.\w+)?|\._tensor"
    r"|\.distributed(\.\w+)?|\.utils\.(checkpoint|data(\.\w+)?)|\.serialization|\.random|\.functional|\.fx(\.\w+)?)?"
    r"|threading|asyncio(\.\w+)?|multiprocessing(\.\w+)?|contextlib|contextvars|signal|os|sys|atexit|warnings|gc|logging"
    r"|traceback|linecache|builtins|pickle|copy|inspect|weakref|importlib(\.\w+)?|runpy"
)


def _patched(torch: Any) -> Iterator[str]:
    """Yield what stands in torch's and Python's own modules and classes with code from elsewhere."""
    own = os.path.dirname(torch.__file__) if torch is not None else _STANDARD
    for name, module in list(sys.modules.items()):
        if not (_WATCHED.fullmatch(name) and isinstance(module, types.ModuleType)):
            continue
        for attribute, value in list(vars(module).items()):
            if type(value) is type and value.__module__ == name:
                yield from _foreign(f"{name}.{attribute}", vars(value).items(), own)
        yield from _foreign(name, vars(module).items(), own)


def _foreign(place: str, members: Iterable[tuple[str, Any]], own: str) -> Iterator[str]:
    for name, value in list(members):
        function = value.__func__ if type(value) in (staticmethod, classmethod) else value
        if type(function) is not types.FunctionType:
            continue
        file = function.__code__.co_filename
        standard = file.startswith(_STANDARD) and "site-packages" not in file
        if not (standard or file.startswith((own, "<")) or file.endswith("typing_extensions.py")):
            yield f"{place}.{name}: {os.path.basename(file)}"


def _cuda(torch: Any) -> dict[str, Any]:
    """Return what the caching allocator says of each GPU; synchronises first."""
    torch.cuda.synchronize()
    kept = re.compile(
        r"(allocated_bytes|reserved_bytes|active_bytes|requested_bytes|allocation|segment)\.all\.(peak|allocated)"
        r"|num_alloc_retries|num_ooms|num_device_alloc|num_device_free"
    )
    devices = []
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        devices.append({name: value for name, value in stats.items() if kept.fullmatch(name)})
    return {
        "allocators": devices,
        "random": [_digest(bytes(torch.cuda.get_rng_state(one).tolist())) for one in range(len(devices))],
        "current_stream_is_default": torch.cuda.current_stream() == torch.cuda.default_stream(),
        "history": torch._C._cuda_isHistoryEnabled(),
    }
