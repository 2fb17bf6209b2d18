"""Build a rank's tables and manifest from its journal.

Each step is a pure function of the one before: events of one device -> lifetimes of blocks (:mod:`.replay`) -> their
owners (:mod:`.owners`) -> their categories (:mod:`.rules`) -> table rows. The replay is compared with the allocator's
own counters. All results are stored as ``checks``, whether they agree or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuledger.analyze.module_paths import (
    in_containers,
    module_rows,
    qualified_names,
    with_names,
    without_wrappers,
)
from gpuledger.analyze.posting.activities import OwnedSpans, own_spans
from gpuledger.analyze.posting.checks import check_device
from gpuledger.analyze.posting.device import DeviceHistory, device_histories, pools_of_graphs
from gpuledger.analyze.posting.flight_rows import failure_tables, step_memory_table, with_modules_by_order
from gpuledger.analyze.posting.fused_work import divide_fused, kernel_names
from gpuledger.analyze.posting.graph_replays import replay_notes
from gpuledger.analyze.posting.host_waits import host_waits
from gpuledger.analyze.posting.owners import in_traced_code
from gpuledger.analyze.posting.parts.block_parts import block_part_table
from gpuledger.analyze.posting.recorded.operator_spans import with_recorded_times
from gpuledger.analyze.posting.rows import (
    block_table,
    counter_table,
    process_sample_table,
    sample_table,
    segment_table,
    shard_table,
    span_table,
    stack_table,
    step_table,
    window_table,
)
from gpuledger.files.reading import storable
from gpuledger.model.journal.checks import read_checked
from gpuledger.model.journal.extent import JOURNAL_DIRECTORY, has_new_journal, journal_extent
from gpuledger.model.journal.journal import CACHED_CODE, FOUND_BY_LINES, OWN_ERROR, REASONS, WITHOUT_MODULES
from gpuledger.model.journal.reading import Journal
from gpuledger.model.manifest import RankManifest, write_rank_manifest
from gpuledger.model.run import KeptRank, Rank, write_table
from gpuledger.model.run_directory import rank_directories
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

_NOT_IN_MANIFEST = (
    *("called_roots", "contained_roots", "root_names", "module_classes", "stack_modules", "workspace_bytes"),
    *("steps_asked", "activity_names", "operator_inputs", "compiled_graphs", "captured_pools", "shards"),
    *("step_memory_from_ns", "times_from_ns", "wrapped_models", "timed_operators", "workspace_addresses"),
)
"""Facts that are not stored in the manifest."""


def post_rank(rank_directory: Path) -> RankManifest:
    """Return the rank's manifest, after writing it and the rank's tables.

    Args:
        rank_directory: ``NAME.ledger/rank-N``, which contains ``journal``.

    Raises:
        InputError: a directory to write to is a link.
        OSError: the tables cannot be written.
    """
    files, size_bytes = journal_extent(rank_directory)
    journal = read_checked(rank_directory / JOURNAL_DIRECTORY)
    posted = post_journal(journal, int(rank_directory.name.removeprefix("rank-")))
    for name, table in posted.tables.items():
        write_table(rank_directory, table, name)
    manifest = replace(posted.manifest, journal_parts=files, journal_bytes=size_bytes)
    write_rank_manifest(rank_directory, manifest)
    return manifest


def post_ranks(run_directory: Path, posted: Callable[[Rank], object] = lambda _: None) -> None:
    """Build the tables of every rank with a journal that its tables do not cover.

    Args:
        run_directory: ``NAME.ledger``.
        posted: Called with each rank that has new tables.

    Raises:
        InputError: a directory to write to is a link.
        OSError: the tables cannot be written.
    """
    for number, directory in rank_directories(run_directory):
        if has_new_journal(directory):
            posted(Rank(number, directory, post_rank(directory)))


def post_journal(journal: Journal, rank: int = 0) -> KeptRank:
    """Return a rank's tables and manifest from its journal. Writes nothing."""
    histories = device_histories(journal)
    journal, owned = with_recorded_times(journal) or (journal, own_spans(journal))
    manifest = build_manifest(journal, histories, rank)
    manifest = replace(manifest, oom=with_modules_by_order(journal, histories, manifest.oom))
    if owned is not None:
        notes = (*manifest.notes, *replay_notes(owned.is_replayed, owned.is_matched))
        manifest = replace(manifest, host_waits=host_waits(owned), notes=notes)
        owned = replace(owned, module_id=in_traced_code(journal, owned.stack_id, owned.module_id))
        owned = divide_fused(owned, manifest.fusions, journal)
    return KeptRank(rank, Path(), manifest, tables=build_tables(journal, histories, owned))


def build_tables(journal: Journal, histories: list[DeviceHistory], owned: OwnedSpans | None = None) -> dict[str, Any]:
    """Return every table of a rank as Arrow, by name."""
    import pyarrow as pa

    contained = journal.facts.get("contained_roots") or ()
    named = with_names(journal.modules, *(journal.facts.get(name) or () for name in ("root_names", "module_classes")))
    called = journal.facts.get("called_roots") or ()
    placed = in_containers(*without_wrappers(named, called, journal.facts.get("wrapped_models") or ()), contained)
    modules = module_rows(*placed)
    names = qualified_names(journal.names, _owners_of_names(journal), *placed)
    first_name = len(names)
    if owned is not None:
        names = [*names, *map(storable, kernel_names(journal.facts))]
    tables: dict[str, Any] = {
        "blocks": block_table(histories),
        "block_parts": block_part_table(journal, histories),
        "segments": segment_table(histories),
        "counters": counter_table(journal, histories),
        "samples": sample_table(journal),
        "process_samples": process_sample_table(journal),
        "windows": window_table(journal),
        "steps": step_table(journal, histories),
        "spans": span_table(histories, owned, first_name),
        "stacks": stack_table(journal.stacks),
        "shards": shard_table(journal),
        "step_memory": step_memory_table(journal),
        **failure_tables(journal, histories),
    }
    tables["names"] = pa.table([range(len(names)), names], schema=TABLES["names"].arrow_schema())
    tables["modules"] = pa.Table.from_pylist(modules, TABLES["modules"].arrow_schema())
    return tables


def _owners_of_names(journal: Journal) -> dict[int, int]:
    """Return ``name id -> module id`` of the observed owner of a tensor with that name."""
    seen = journal.tables["identities"]
    named = (seen["name_id"] >= 0) & (seen["module_id"] >= 0)
    return dict(zip(seen["name_id"][named].tolist(), seen["module_id"][named].tolist(), strict=True))


def build_manifest(journal: Journal, histories: list[DeviceHistory], rank: int) -> RankManifest:
    """Return the manifest of one rank."""
    facts = dict(journal.facts)
    pauses = journal.tables["pauses"]
    recorded = journal.tables["steps"]["step"][journal.tables["steps"]["recorded"] == 1]
    notes = [*dict.fromkeys(journal.notes), *_notes_on_compiled(journal)]
    closed = facts.pop("closed", None)
    for inner in _NOT_IN_MANIFEST:
        facts.pop(inner, None)
    if closed is None:
        notes.append("The recording is incomplete: its process was killed, or is still running.")
    if facts.pop("time_pass_open", False):
        notes.append("The timing measurement was cut off: its process was killed, or is still running.")
    checks = [check for history in histories for check in check_device(history, journal)]
    notes.extend(
        f"Check failed: {c['name']}: expected {c['expected']}, found {c['found']}" for c in checks if not c["ok"]
    )
    value = {
        **facts,
        "schema_version": SCHEMA_VERSION,
        "rank": rank,
        "status": "closed" if closed and closed != OWN_ERROR else "cut off",
        "closed_by": closed,
        "window": {
            "first_step": int(recorded.min()) if recorded.size else None,
            "last_step": int(recorded.max()) if recorded.size else None,
            "asked": journal.facts.get("steps_asked"),
        },
        "steps_seen": facts.get("steps_seen", int(journal.rows("steps"))),
        "notes": notes,
        **({} if (pools := pools_of_graphs(journal)) is None else {"graph_pools": pools}),
        "damaged": journal.damaged,
        "checks": checks,
        "pauses": [
            {"reason": REASONS[reason], "start_ns": int(start), "duration_ns": int(duration)}
            for reason, start, duration in zip(pauses["reason"], pauses["start_ns"], pauses["duration_ns"], strict=True)
        ],
    }
    return RankManifest.from_json(value)


NOTHING_COMPILED = (
    "{modules} to run compiled, and torch.compile has compiled nothing, so the program ran uncompiled. The method "
    "compile() of torch's own modules, such as nn.Sequential, has no effect: call torch.compile(model) instead. "
    "TORCHDYNAMO_DISABLE=1 and torch.compiler.set_stance('force_eager') also switch the compiler off."
)


FUNCTIONS_WITHOUT_MODULES = (
    "The backend of torch.compile reported no modules, as Inductor does, so memory and time of compiled functions are "
    "outside modules or on the module that calls them."
)


def _notes_on_compiled(journal: Journal) -> list[str]:
    """Return a note if a module that was called is compiled, and its code could not be divided among its modules."""
    called = set(journal.facts.get("called_roots") or [])
    count = sum(bool(entry["compiled"]) and entry["root"] in called for entry in journal.modules)
    done = journal.facts.get("compilation") or {}
    regions = done.get("regions") or []
    is_explained = bool(regions or done.get("places"))
    if done and not done.get("graphs") and not is_explained:
        modules = "1 module was" if count == 1 else f"{count} modules were"
        return [NOTHING_COMPILED.format(modules=modules)] if count else []
    if is_explained and not (done.get("graphs") and any(one["compilations"] for one in regions)):  # it ran uncompiled
        return []
    reasons = set((journal.facts.get("compiled_unread") or {}).values())
    reasons -= {CACHED_CODE, FOUND_BY_LINES, WITHOUT_MODULES}
    if not reasons and journal.facts.get("compiled_graphs"):
        return []
    if not count:
        return [FUNCTIONS_WITHOUT_MODULES] if is_explained and not reasons else []
    modules = "1 module runs" if count == 1 else f"{count} modules run"
    why = f" ({storable(min(reasons))})" if reasons else ""
    return [
        f"{modules} compiled, and memory allocated in a compiled region is attributed to its outermost module{why}."
    ]
