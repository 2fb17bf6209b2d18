"""Write docs/format.md from the model: `python tools/make_format_doc.py`.

Columns, units, meanings, sources, rules and words come from the package; only what a type cannot say is written here.
"""

from __future__ import annotations

from pathlib import Path

from gpuledger.model.accounts import CATEGORIES, DEVICE_LINES, LIFETIME_RULES, PHASES, ROUNDING, Identity
from gpuledger.model.journal.journal import COLUMNS, JOURNAL_VERSION, REASONS, STEP_KINDS, Action, BlockState, TagFlag
from gpuledger.model.tables import SCHEMA_VERSION, TABLES, Table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "format.md"

INTRODUCTION = f"""\
<!-- Made by tools/make_format_doc.py from src/gpuledger/model; `make docs` writes it, a test keeps it current. -->
# The format of a run

Schema version {SCHEMA_VERSION}. A run is a directory, written once, read in place by anything that reads Parquet and
JSON. There is no pickle in it, no environment, and of the command only arguments whose names do not look secret.

```
NAME.ledger/
  manifest.json                    the whole run: command, times, exit status, settings and where each came from
  rank-0/                          one process
    manifest.json                  recorder, devices, versions, window, pauses, checks, notes
    blocks/part-00000.parquet      one directory per table below; a table nobody wrote is absent
    …
    journal/00000.npz              what the process wrote while it ran; everything above is made from it
    journal/00001.log              the same, appended to at the end of each recorded step
  rank-1/ …
  notes/1234.txt                   a process that could not be recorded says why; absent where there is none
```

Every file but a journal's `.log` is written beside its place and renamed, so a killed run leaves whole files and all
steps but the one it was in: its manifest's `status` says `cut off`. `run_id` tells a run from others of its name.
A reader refuses a `schema_version` newer than its own; a new column alone does not raise it.

Integers are in base units, and the unit is in the column's name. Missing is null (in JSON: null or absent, with a
sentence in `notes`), never 0. An event is one entry of the allocator's history; `index` i is a device's i-th event, and
"at index i" is the state just after it. Index -1 is before the recording. Times tie; indices do not.

A block is allocated at i when `alloc_index <= i` and `free_requested_index` is null or above i; it is active until
`free_index`. The sum of `allocated_bytes` of allocated blocks is the allocator's own `allocated_bytes` at that event.
Grouped by category it sums requested bytes, and the account `{ROUNDING}` holds the rest.

```sql
select category, sum(requested_bytes) from blocks
where alloc_index <= 1200 and (free_requested_index is null or free_requested_index > 1200) group by category
```
"""

MANIFESTS = """\
## Manifests

`manifest.json` of the run: `schema_version`, `gpuledger_version`, `run_id`, `name`, `command` (a list), `started_ns`,
`ended_ns`, `exit_status`, `signal` (that ended it, or null), `status` (running, complete, cut off), `settings`
({name: {value, origin}}), `notes`.

`rank-N/manifest.json`: `schema_version`, `rank`, `pid`, `recorder` (cuda-history or dispatch), `devices` (device_idx,
name, uuid, total_bytes, driver_version), `torch_version`, `cuda_version`, `python_version`, `allocator_settings`,
`passes`, `energy_pass` (the edges its process wrote down; absent without one), `energy` (per GPU: device_idx,
first_step, last_step, start_ns, end_ns, energy_j, uncertainty_j, ticks, throttled_ns, source, base_before_w and
base_after_w of the idle GPU, idle_w before the program, notes), `inputs` (module, shape and tokens of the first input
tensor of the outermost module), `calls` (runs of steps with one shape: first, last, rows, length),
`measured_watts` (of operators on its GPU, by which joules are shared: GPU, source, types; absent where not known),
`power_model` (watts by FLOPs and bytes on its GPU: peaks, coefficients; absent where the catalogue lacks it),
`time_steps` (first and last of the time pass; absent without one), `kernels_alone` (from which of them on, and from
which time, only kernels were recorded; null where operators always were), `host_waits` (the time pass's gaps on each
device, and the part of them that the host took), `status` (closed, cut off),
`closed_by`, `window` (first_step, last_step, asked), `steps_seen`, `journal_parts` and `journal_bytes` (posted so far),
`stacks`, `notes`,
`left_out` (what a pass that nobody asked for by name could not have; absent where each had all), `damaged` (parts that
could not be read), `pauses` (reason, start_ns, duration_ns), `checks` (name, device_idx,
expected, found, ok: the replay against the allocator's own counters), `operators` (of the dispatch-mode recorder;
`blocks.operator_id` is the place in this list), `oom` (device_idx, tried_bytes, total_bytes,
free_bytes, largest_free_bytes), `recorder_bytes`, `collectives` (nccl, gloo, …; null without a process group),
`libraries` (context_bytes, library_bytes, source; absent where not measured).
"""

JOURNAL_ROWS = {
    "events": "one entry of the allocator's history, or of the dispatch-mode recorder",
    "tags": "what a tag on an event means: where the allocating thread was",
    "snapshots": "one picture of all segments and blocks, and the number of events before it",
    "snapshot_segments": "one segment in a snapshot",
    "snapshot_blocks": "one block in a snapshot",
    "identities": "a storage seen to be a weight, buffer, gradient, optimizer state or input, and when",
    "counters": "the allocator's counters at one moment",
    "samples": "one reading of the GPU's memory",
    "process_samples": "one process's bytes on the card",
    "steps": "one step",
    "activities": "one event of the time pass, as Kineto tells it",
    "sensors": "one reading of a GPU's slower sensors, at the time of a row of samples",
    "windows": "one energy window",
    "ticks": "one move of a GPU's energy counter",
    "pauses": "one stretch in which the recorder held the program up",
}


def render() -> str:
    """Return the page."""
    sections = [INTRODUCTION, *(table_section(table) for table in TABLES.values()), words(), MANIFESTS, journal()]
    return "\n".join(sections)


def table_section(table: Table) -> str:
    """Return the section of one table."""
    rows = [
        (f"`{c.name}`", c.type + (" or null" if c.nullable else ""), c.unit, c.meaning, c.source) for c in table.columns
    ]
    return f"## {table.name}: {table.row}\n\n{grid(('column', 'type', 'unit', 'meaning', 'source'), rows)}"


def words() -> str:
    """Return the section of labels and of the rules that choose a category."""
    rules = [
        (
            str(number),
            rule.category,
            ", ".join(rule.phases),
            ", ".join(fate.replace("_", " ") for fate in rule.fates),
            rule.why,
        )
        for number, rule in enumerate(LIFETIME_RULES, 1)
    ]
    return "\n".join(
        [
            "## Words\n",
            f"Categories: {', '.join(CATEGORIES)}; beside them the account `{ROUNDING}`.\n",
            f"Phases: {', '.join(PHASES)}.\n",
            f"Device lines of the balance: {', '.join(DEVICE_LINES)}.\n",
            f"`counters.reason` and pauses: {', '.join(REASONS)}. `steps.kind`: {', '.join(STEP_KINDS)}.\n",
            "A category comes from identity where somebody saw whose storage it is (a parameter, a buffer, a gradient,",
            "an optimizer's state, an argument of the outermost module). Otherwise from the block's life, by the first",
            "rule that holds. *Same visit*: given back before the phase it was born in was left; *later*: in a later",
            "phase or step; *kept*: outlived its step and was never given back; *alive*: not given back when the",
            "recording closed inside its step.\n",
            grid(("rule", "category", "allocated in", "ended", "why"), rules),
        ]
    )


def journal() -> str:
    """Return the section of the journal."""
    rows = [
        (f"`{table}`", JOURNAL_ROWS[table], ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))
        for table, columns in COLUMNS.items()
    ]
    codes = "; ".join(
        f"{title}: " + ", ".join(f"{member.value} {member.name.lower()}" for member in enumeration)
        for title, enumeration in (
            ("`events.action`", Action),
            ("`snapshot_blocks.state`", BlockState),
            ("`identities.kind`", Identity),
            ("`tags.flags` (bits)", TagFlag),
        )
    )
    return "\n".join(
        [
            "## The journal\n",
            f"Journal version {JOURNAL_VERSION}. Numbered `.npz` parts, read without pickle; an array is named",
            "`table.column`, and `text` holds names, modules, stacks, notes and facts as JSON. It is the evidence the",
            "tables are made from and may change from version to version: read the tables.\n",
            grid(("table", "a row", "columns"), rows),
            f"{codes}. In columns of ids -1 is none.\n",
        ]
    )


def grid(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
