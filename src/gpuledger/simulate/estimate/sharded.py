"""Estimates of sharded training from Python: a script that torchrun starts is simulated as some of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuledger.files.scratch import scratch_directory
from gpuledger.simulate.catalogue import REFERENCE
from gpuledger.simulate.estimate.ranks import RanksEstimate, estimate_program_ranks
from gpuledger.simulate.estimate.run import DEFAULT_CONFIDENCE, make_order
from gpuledger.simulate.estimate.world_search import DEFAULT_MOST_RANKS, WorldSearch, search_world_size


def estimate_ranks(
    script: str,
    *arguments: str,
    world_size: int,
    ranks: Sequence[int] = (),
    gpu: str = REFERENCE,
    steps: int | None = None,
    alloc_conf: str = "",
    out: str | Path | None = None,
) -> RanksEstimate:
    """Return how many bytes each simulated rank of a sharded training would need, and whether all of them fit.

    Each rank is simulated in a process of its own, without a GPU and without communication. The script is unchanged.
    The upper bounds have a confidence level of 0.95.

    Args:
        script: A Python file that ``torchrun`` would start, or ``-m`` and a module.
        arguments: Its arguments.
        world_size: Number of ranks, one GPU each.
        ranks: Ranks to simulate, such as ``range(8)``. By default rank 0, all ranks that send it Python objects, and
            the last rank if there are none.
        gpu: A GPU listed by ``gpuledger gpus``.
        steps: Number of training steps to simulate; by default as many as the shapes of the inputs require.
        alloc_conf: Settings as in ``PYTORCH_CUDA_ALLOC_CONF``.
        out: Directory of the run; by default a temporary one, which is removed when nothing refers to the result's
            ``run`` or its ranks any more, or this process ends. If there is no estimate, it is removed.

    Raises:
        UsageError: no such script, GPU or rank, a number is outside its range, or ``out`` exists or cannot be created.
        InputError: the script failed, initialized no process group, or uses something that cannot be simulated.
        GpuLedgerError: a process crashed with the script.

    Source: PyTorch's caching allocator, simulated for each rank; context and libraries as measured on that GPU. The
    memory of NCCL is what its communicators were measured to use on H200s, see ``nccl_bytes``.

    Example:
        >>> import gpuledger
        >>> gpuledger.estimate_ranks("train.py", world_size=8, gpu="h100-80gb").fits  # doctest: +SKIP
    """
    order = make_order("estimate_ranks", (script, *arguments), gpu, steps, DEFAULT_CONFIDENCE, alloc_conf)
    if out is not None:
        return estimate_program_ranks(order, world_size, Path(out), ranks=tuple(ranks))
    with scratch_directory() as (directory, keep_with):
        found = estimate_program_ranks(order, world_size, directory / "estimate.ledger", ranks=tuple(ranks))
        keep_with(found.run, *found.run.ranks)
    return found


def find_world_size(
    script: str,
    *arguments: str,
    most: int = DEFAULT_MOST_RANKS,
    gpu: str = REFERENCE,
    steps: int | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    alloc_conf: str = "",
) -> WorldSearch:
    """Return the smallest number of ranks that fits (None in ``smallest`` if none does), and the numbers tried.

    Numbers up to 8 are tried, and then multiples of 8. Numbers that the script refuses are passed over.

    Args:
        script: A Python file that ``torchrun`` would start, or ``-m`` and a module.
        arguments: Its arguments.
        most: Largest number of ranks to try.
        gpu: A GPU listed by ``gpuledger gpus``.
        steps: Number of training steps to simulate; by default as many as the shapes of the inputs require.
        confidence: Confidence level of the upper bounds, from 0.5 to 0.999.
        alloc_conf: Settings as in ``PYTORCH_CUDA_ALLOC_CONF``.

    Raises:
        UsageError: no such script or GPU, or a number is outside its range.
        InputError: the script fails with every number of ranks that was tried.
        GpuLedgerError: a process crashed with the script.

    Source: :func:`estimate_ranks` for each number of ranks.

    Example:
        >>> import gpuledger
        >>> gpuledger.find_world_size("train.py", most=64, gpu="h100-80gb").smallest  # doctest: +SKIP
    """
    order = make_order("find_world_size", (script, *arguments), gpu, steps, confidence, alloc_conf)
    return search_world_size(order, lambda _line: None, most)
