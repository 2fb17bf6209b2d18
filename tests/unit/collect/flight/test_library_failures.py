"""Libraries that could not allocate GPU memory: found in the exception that ends a program, and explained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from failing_allocator import MIB, counters, snapshot

from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.adapter import torch_private
from gpuledger.collect.flight import library_failures
from gpuledger.collect.flight.last_error import MemoryErrors
from gpuledger.collect.flight.library_failures import find_library_failure, library_of
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.model.run import Rank

NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nFailed to CUDA calloc async 4 bytes"
)
GIB = 1 << 30


class DistBackendError(RuntimeError):
    """Stands for torch's error of this name."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show a GPU of 80 GiB, of which 160 MiB are free, in a process that reserves 78 GiB and uses 70 of it."""
    shown = snapshot([70 * GIB], [8 * GIB])
    monkeypatch.setattr(torch_private, "has_cuda_context", lambda: True)
    monkeypatch.setattr(torch_private, "memory_stats", lambda _device: counters(70 * GIB))
    monkeypatch.setattr(torch_private, "light_snapshot", lambda: shown)
    monkeypatch.setattr(torch_private, "memory_fraction", lambda _device: 1.0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device=0: (160 * MIB, 80 * GIB))


@pytest.mark.parametrize(
    ("text", "type_name", "library"),
    [
        (NCCL, "DistBackendError", "NCCL"),
        ("NCCL Error 1: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'", "RuntimeError", "NCCL"),
        ("NCCL error: unhandled system error\nsocket closed by remote peer", "DistBackendError", ""),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "RuntimeError", "cuBLAS"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "RuntimeError", "cuDNN"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "RuntimeError", "cuDNN"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "RuntimeError", ""),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", "RuntimeError", ""),
        ("CUDA error: out of memory\nCUDA kernel errors might be", "AcceleratorError", "a CUDA library"),
        ("Triton Error [CUDA]: out of memory", "RuntimeError", "a CUDA library"),
        ("CUDA error: an illegal memory access was encountered", "AcceleratorError", ""),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes", "RuntimeError", ""),
        ("the queue is out of memory slots", "ValueError", ""),
    ],
)
def test_the_library_is_named(text: str, type_name: str, library: str) -> None:
    assert library_of(text, type_name) == library


@pytest.mark.usefixtures("gpu")
def test_the_error_can_be_the_reason_of_another_and_no_code_of_its_class_runs() -> None:
    class Careful(RuntimeError):
        def __str__(self) -> str:
            raise AssertionError("code of the program")

    def start() -> None:
        raise Careful(NCCL)

    def train() -> None:
        try:
            start()
        except Careful as first:
            raise ValueError("training failed") from first

    with pytest.raises(ValueError, match="training failed") as caught:
        train()
    found = find_library_failure(caught.value)
    assert found is not None
    assert (found["library"], found["free_bytes"], found["total_bytes"]) == ("NCCL", 160 * MIB, 80 * GIB)
    assert found["frames"][0][2] == "start"


@pytest.mark.usefixtures("gpu")
def test_errors_of_the_allocator_and_other_errors_are_not_those_of_a_library() -> None:
    assert find_library_failure(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")) is None
    assert find_library_failure(ValueError("a shape")) is None
    assert find_library_failure(None) is None


@pytest.mark.usefixtures("gpu")
def test_free_memory_is_unknown_if_cuda_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_device: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    found = find_library_failure(DistBackendError(NCCL))
    assert found is not None
    assert found["free_bytes"] is None


def recorded(directory: Path, *, flight_recorder: bool) -> Rank:
    """Return the rank of a program that NCCL's start ends."""
    rank_directory = directory / "oom.ledger" / "rank-0"
    rank_directory.mkdir(parents=True)
    settings = RecordSettings(rank_directory.parent, devices="cpu", flight_recorder=flight_recorder)
    session = Session(settings, rank_directory=lambda: rank_directory, from_outside=True, begins_late=False)
    session.start()
    try:
        raise DistBackendError(NCCL)
    except DistBackendError:
        session.finish("exit")
    return Rank(0, rank_directory, post_rank(rank_directory))


@pytest.mark.usefixtures("gpu")
def test_the_first_sentence_names_the_library_and_what_was_free(tmp_path: Path) -> None:
    (failure,) = explain_oom(recorded(tmp_path, flight_recorder=True))
    assert failure.cause is not None
    assert failure.cause.kind == "library"
    assert failure.cause.sentence == (
        "NCCL could not allocate GPU memory: 160.0 MiB were free after the error; "
        "PyTorch reserves 78.0 GiB, of which 8.0 GiB are free"
    )
    remedies = {one.action: (one.saving_bytes, one.fits) for one in failure.remedies}
    assert remedies["empty the cache first (torch.cuda.empty_cache())"] == (8 * GIB, None)
    assert failure.line.endswith("in recorded")


@pytest.mark.usefixtures("gpu")
def test_without_the_flight_recorder_the_free_memory_of_the_gpu_is_known(tmp_path: Path) -> None:
    (failure,) = explain_oom(recorded(tmp_path, flight_recorder=False))
    assert failure.cause is not None
    assert failure.cause.sentence == "NCCL could not allocate GPU memory: 160.0 MiB were free after the error"


@pytest.mark.usefixtures("gpu")
def test_an_error_of_an_earlier_line_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "last_exc", DistBackendError(NCCL), raising=False)
    MemoryErrors(seen.append, lambda: 0, lambda *_: None).see_last()
    assert [one["library"] for one in seen] == ["NCCL"]
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    MemoryErrors(seen.append, lambda: 0, lambda *_: None).see_last()
    assert len(seen) == 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("Tried to allocate 2 bytes."), ValueError("bad")])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_only_an_error_of_the_allocator_is_told_as_the_one_that_ended_the_program(
    error: Exception, is_wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    last: Exception = error
    if is_wrapped:
        last = RuntimeError("training failed")
        last.__cause__ = error
    monkeypatch.setattr(sys, "last_exc", last, raising=False)
    told: list[str] = []
    MemoryErrors(lambda _: None, lambda: 0, lambda text, _place: told.append(text)).see_last()
    assert told == ([str(error)] if isinstance(error, torch.OutOfMemoryError) else [])


def test_python_keeps_the_exception_that_ends_a_program_until_its_exit_functions_run() -> None:
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(repr(getattr(sys, 'last_exc', None) or sys.last_value)))\n"
        "raise RuntimeError('NCCL')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout.strip()) == (1, "RuntimeError('NCCL')")
    assert library_failures.last_error() is None
