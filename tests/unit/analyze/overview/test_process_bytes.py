"""Context, libraries and NCCL from samples of the process itself: each line is what came at its time, and adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import synthetic
from synthetic import load_run

from gpuledger.analyze.overview.balance import Balance, build_balance
from gpuledger.analyze.overview.process_bytes import has_context_reading, read_outside
from gpuledger.model.imported import rows_to_table
from gpuledger.model.run import Rank, read_run, write_table
from gpuledger.model.run_directory import write_json

MIB = 1 << 20
START = ("call", 0, 518)
"""Reason, steps seen, and MiB of the process outside the allocator."""


def rank_with(path: Path, *samples: tuple[str, int, int], **facts: Any) -> Rank:
    """Return a run in which the process was sampled in this order, the last time at the run's end."""
    rank = load_run(path).rank()
    counters = rank.table("counters").to_pylist()[:-1]  # the last one has no place among the events
    more = len(samples) - len(counters)
    early = [counters[0] | {"t_ns": counters[0]["t_ns"] - place} for place in range(more, 0, -1)]
    rows = [*early, *counters][-len(samples) :]
    processes, used = [], []
    for row, (reason, seen, outside) in zip(rows, samples, strict=True):
        row |= {"reason": reason, "step": seen}
        own = row["reserved_bytes"] + outside * MIB
        place = {"t_ns": row["t_ns"], "device_idx": 0}
        processes += [place | {"pid": synthetic.PID, "bytes": own}]
        used += [place | {"used_bytes": own + 9 * MIB, "driver_bytes": 0, "total_bytes": synthetic.TOTAL_BYTES}]
    for name, table in (("counters", rows), ("process_samples", processes), ("samples", used)):
        write_table(rank.directory, rows_to_table(name, table), name)
    manifest = rank.directory / "manifest.json"
    write_json(manifest, json.loads(manifest.read_text()) | facts)
    return read_run(path).rank()


def lines(balance: Balance) -> dict[str, tuple[int | None, str]]:
    return {line.name: (line.bytes and line.bytes // MIB, line.note) for line in balance.lines if line.level == 1}


def test_each_line_is_what_came_at_its_time(tmp_path: Path) -> None:
    rank = rank_with(tmp_path / "a.ledger", START, ("step_end", 1, 750), ("step_end", 2, 758), ("close", 2, 758))
    balance = build_balance(rank, at="end")
    found = lines(balance)
    assert found["context"] == (518, "before the first module call")
    assert found["library"] == (240, "232.0 MiB in step 1, 8.0 MiB in step 2")
    assert "nccl" not in found
    assert balance.unaccounted_bytes == 9 * MIB
    assert has_context_reading(rank)


def test_a_gpu_of_another_rank_needs_no_context(tmp_path: Path) -> None:
    """A rank sees the GPUs of all ranks. A separate process measured the context then, for many seconds."""
    rank = rank_with(tmp_path / "a.ledger", START, ("step_end", 1, 750), ("close", 2, 758))
    counters = rank.table("counters").to_pylist()
    unused = counters[0] | {"device_idx": 1, "reserved_bytes": 0}
    write_table(rank.directory, rows_to_table("counters", [*counters, unused]), "counters")
    assert has_context_reading(read_run(tmp_path / "a.ledger").rank())


def test_without_module_calls_the_context_is_what_came_until_the_first_operator(tmp_path: Path) -> None:
    rank = rank_with(tmp_path / "a.ledger", ("open", 0, 0), ("operator", 0, 510), ("close", 0, 590), ("exit", 0, 590))
    found = lines(build_balance(rank, at="end"))
    assert found["context"] == (510, "until the first operator ended")
    assert found["library"][0] == 80
    assert has_context_reading(rank)


def test_a_module_call_comes_before_the_first_operator(tmp_path: Path) -> None:
    rank = rank_with(tmp_path / "a.ledger", ("operator", 0, 510), START, ("step_end", 1, 750))
    assert lines(build_balance(rank, at="end"))["context"] == (518, "before the first module call")


def test_the_libraries_of_an_instant_are_those_loaded_by_then(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    rank = rank_with(path, START, ("step_end", 1, 750), ("step_end", 2, 758), ("close", 2, 758))
    times = [row["t_ns"] for row in rank.table("counters").to_pylist()]
    sizes = [outside.library_bytes // MIB for at in times if (outside := read_outside(rank, 0, at)) is not None]
    assert sizes == [0, 232, 240, 240]
    assert read_outside(rank, 0, times[0] - 1) is None


def test_what_comes_during_a_first_collective_is_nccls(tmp_path: Path) -> None:
    around = (("collective_start", 0, 500), ("collective_end", 0, 1350))
    later = (("collective_start", 0, 1380), ("collective_end", 0, 1390))
    samples = (*around, ("call", 0, 1360), *later, ("step_end", 1, 1600), ("close", 1, 1600))
    rank = rank_with(tmp_path / "a.ledger", *samples, collectives="nccl")
    balance = build_balance(rank, at="end")
    found = lines(balance)
    assert [found[name][0] for name in ("context", "nccl", "library")] == [510, 860, 230]
    assert found["nccl"][1] == "during the first collective of a process group: 860.0 MiB in step 1"
    assert balance.unaccounted_bytes == 9 * MIB
    assert "NCCL" not in found["unaccounted"][1]


def test_nccls_memory_is_told_by_process_group(tmp_path: Path) -> None:
    around = (("collective_start", 0, 500), ("collective_end", 0, 1350))
    later = (("collective_start", 0, 1380), ("collective_end", 0, 1390))
    samples = (*around, ("call", 0, 1360), *later, ("step_end", 1, 1600), ("close", 1, 1600))
    path = tmp_path / "a.ledger"
    counters = rank_with(path, *samples, collectives="nccl").table("counters").to_pylist()
    ends_ns = [row["t_ns"] for row in counters if row["reason"] == "collective_end"]
    groups = (("the default process group", 4, "all_reduce"), ("mesh_tp", 2, "redistribute_local_tensor"))
    said = [
        {"group": group, "size": size, "call": call, "t_ns": t_ns}
        for (group, size, call), t_ns in zip(groups, ends_ns, strict=True)
    ]
    manifest = path / "rank-0" / "manifest.json"
    write_json(manifest, json.loads(manifest.read_text()) | {"communications": said})
    note = lines(build_balance(read_run(path).rank(), at="end"))["nccl"][1]
    first = "850.0 MiB in step 1 with the default process group (4 ranks)"
    assert note == f"during the first collective of a process group: {first}, 10.0 MiB in step 1 with mesh_tp (2 ranks)"


def test_without_a_sample_before_the_first_collective_nothing_is_told_apart(tmp_path: Path) -> None:
    samples = (("collective_end", 0, 1350), ("call", 0, 1360), ("step_end", 1, 1600), ("close", 1, 1600))
    found = lines(build_balance(rank_with(tmp_path / "a.ledger", *samples, collectives="nccl"), at="end"))
    assert found["context"] == (1360, "before the first module call, may include NCCL's buffers")
    assert "nccl" not in found


def test_memory_that_comes_after_the_first_steps_is_unaccounted(tmp_path: Path) -> None:
    first = (START, ("step_end", 1, 758), ("step_end", 2, 758), ("step_end", 3, 758))
    balance = build_balance(rank_with(tmp_path / "a.ledger", *first, ("step_end", 4, 858), ("close", 4, 858)), at="end")
    assert balance.unaccounted_bytes == 109 * MIB
    assert lines(balance)["unaccounted"][1].endswith("outside PyTorch's allocator came 100.0 MiB in step 4")
    less = build_balance(rank_with(tmp_path / "b.ledger", *first, ("step_end", 4, 700), ("close", 4, 700)), at="end")
    assert less.unaccounted_bytes == 9 * MIB  # released memory is not a negative remainder


def test_a_recording_that_begins_late_does_not_divide_context_and_libraries(tmp_path: Path) -> None:
    late = (("open", 9, 750), ("step_end", 10, 758), ("close", 10, 758))
    apart = {"context_bytes": 600 * MIB, "library_bytes": 1, "source": "another process"}
    measured = build_balance(rank_with(tmp_path / "a.ledger", *late, libraries=apart), at="end")
    assert [lines(measured)[name][0] for name in ("context", "library")] == [600, 158]
    assert measured.notes[-1] == "CUDA context and libraries: another process."
    rank = rank_with(tmp_path / "b.ledger", *late, libraries=None)
    assert lines(build_balance(rank, at="end"))["library"][0] == 758
    assert not has_context_reading(rank)


def test_a_separate_measurement_is_named_where_one_of_its_sizes_is_used(tmp_path: Path) -> None:
    apart = {"context_bytes": 600 * MIB, "library_bytes": 1, "source": "another process"}
    whole = rank_with(tmp_path / "a.ledger", START, ("step_end", 1, 750), ("close", 1, 750), libraries=apart)
    assert build_balance(whole, at="end").notes == ()
    late = (("open", 9, 750), ("step_end", 10, 758), ("close", 10, 758))
    for number, (sizes, notes) in enumerate(
        [(apart, 1), (apart | {"source": ""}, 0), (apart | {"context_bytes": None}, 0)]
    ):
        rank = rank_with(tmp_path / f"{number}.ledger", *late, libraries=sizes)
        assert len(build_balance(rank, at="end").notes) == notes
