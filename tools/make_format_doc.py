"""Write docs/format.md from the model: `python tools/make_format_doc.py`.

Columns, units, meanings, sources, rules and words come from the package; only what a type cannot say is written here.
"""

from __future__ import annotations

from pathlib import Path

from gpuledger.model.accounts import CATEGORIES, DEVICE_LINES, LIFETIME_RULES, PHASES, ROUNDING, Identity
from gpuledger.model.journal.journal import COLUMNS, JOURNAL_VERSION, REASONS, STEP_KINDS, Action, BlockState, TagFlag
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES, Table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "format.md"

INTRODUCTION = f"""\
# What is in a run on disk?

A run is a directory of Parquet tables and JSON files, which any tool for these formats can open. `make docs` makes this
page from the source. It describes schema version {SCHEMA_VERSION}.

```
NAME.ledger/
  manifest.json                    the whole run: command, times, exit status, settings
  rank-0/                          one process
    manifest.json                  recorder, devices, versions, recorded steps, pauses, checks, notes
    blocks/part-00000.parquet      one directory for each table below; an empty table is absent
    …
    journal/00000.npz              raw events, from which the tables are made
    journal/00001.log              the same, with one entry for each recorded step
  rank-1/ …
  notes/1234.txt                   why a process could not be recorded; usually absent
```

- The directory contains no pickle and no environment variables. Secrets in the command are replaced by `***`.
- A killed run contains all complete steps. Its `status` is `cut off`.
- `run_id` distinguishes runs with the same name.
- A reader rejects a newer `schema_version`. A new column does not change it.
- Integers are in base units, and the column's name has the unit.
- An unknown value is null, never 0. In JSON it is null or absent, with a note.

An event is one entry of the allocator's history. `index` i is the i-th event of a device, and "at index i" is the state
after it. Index -1 is before the recording. Times can be equal; indices are not.

A block is allocated at i if `alloc_index <= i` and `free_requested_index` is null or above i. It is active until
`free_index`. The `allocated_bytes` of allocated blocks sum to the allocator's counter. By category, requested bytes are
summed, and `{ROUNDING}` has the rest.

```sql
select category, sum(requested_bytes) from blocks
where alloc_index <= 1200 and (free_requested_index is null or free_requested_index > 1200) group by category
```
"""

MANIFESTS = """\
## Manifests

Keys of the run's `manifest.json`:

| key | content |
| --- | --- |
| `schema_version`, `gpuledger_version` | versions of the format and the writer |
| `run_id`, `name` | identity of the run |
| `command` | list of arguments |
| `started_ns`, `ended_ns` | times |
| `job` | the job of ranks that record themselves, so that they share the run |
| `exit_status`, `signal` | how the program ended |
| `status` | running, complete or cut off |
| `settings` | {name: {value, origin}} |
| `notes` | sentences for the reader |

Keys of `rank-N/manifest.json`:

| key | content |
| --- | --- |
| `schema_version`, `rank`, `pid` | identity of the process |
| `recorder` | cuda-history or dispatch |
| `devices` | device_idx, name, uuid, total_bytes, driver_version |
| `torch_version`, `cuda_version`, `python_version` | versions |
| `allocator_settings` | value of `PYTORCH_CUDA_ALLOC_CONF` |
| `passes` | measurements that were requested |
| `energy_pass` | start and end of the energy measurement; absent without one |
| `energy` | for each GPU: steps, times, energy, uncertainty, ticks, throttled time, source, idle power, notes |
| `inputs` | the input tensor that shows the batch: module, shape, batch dimension, tokens, calls, samples of a step |
| `has_batch` | whether an input, an output or a DataLoader shows that the inputs have a batch |
| `calls` | groups of steps with one shape: first, last, rows, length |
| `measured_watts` | measured power of operators on this GPU, for the energy of layers; absent if unknown |
| `power_model` | power by FLOPs and bytes on this GPU; absent if the GPU is not in the catalogue |
| `time_steps` | first and last profiled step; absent without one |
| `compilation` | graphs and seconds of `torch.compile`, its regions and graph breaks; absent if it was not used |
| `graph_pools` | pools of captured CUDA graphs with their segments; absent for CPU tensors |
| `cpu_wait_frac` | share of time after the recorded steps in which their thread waited for a CPU; absent if unknown |
| `line_step` | step in which operators have source lines, and its start; absent without one |
| `times_of_all_threads` | whether the profiled steps have the work of all threads |
| `kernels_alone` | first profiled step without operators, and its time; null if all have operators |
| `host_waits` | gaps between kernels on each device, and the part in which the GPU waited for the CPU |
| `status`, `closed_by` | closed or cut off, and by which event |
| `window` | first_step and last_step of the memory recording, and whether they were requested |
| `trainings` | if another optimizer takes over: the first step of each training, and its number; otherwise empty |
| `steps_seen`, `has_all_steps` | number of steps; whether they were counted until the program ended |
| `exit_began_ns`, `exit_error` | when the process began to exit, null if it did not; the type of its last exception |
| `exit_lost_peer` | whether that exception came from another rank, which had closed the connection |
| `is_ended_by_parent` | whether the process that started it kills it when its work is done, as Ray does |
| `launched_ranks` | number of ranks that the launcher starts; null without a launcher of several |
| `exit_status`, `signal`, `ended_ns` | how and when the process ended, as the launcher saw it; null if unknown |
| `stopped_ns` | when `gpuledger run` first got a signal that ends programs, such as SIGTERM; null without one |
| `journal_parts`, `journal_bytes` | raw events that are in the tables |
| `stacks` | whether Python stacks were recorded |
| `notes` | sentences for the reader |
| `left_out` | measurements that were not possible |
| `damaged` | parts that could not be read |
| `pauses` | reason, start_ns, duration_ns |
| `checks` | name, device_idx, expected, found, ok: the replay compared with the allocator's counters |
| `operators` | names of operators; `blocks.operator_id` is the place in this list |
| `oom` | out-of-memory errors: the request, free memory, step, module_id, frames, inputs, thread, times, alloc_conf |
| `censuses`, `failure_census` | live tensors after some steps: groups, graph_nodes, and the holder that grew |
| `tensor_counts` | some steps after the measurements, and numbers that become larger by one with each live tensor |
| `kept_blocks` | blocks of the recorded steps that were alive at the end of the last step, hidden in a graph or not |
| `host_memory`, `host_limit_bytes` | resident, shared, pinned memory, /dev/shm and workers; the cgroup's limit |
| `recorder_bytes` | host memory of the recorder |
| `collectives` | nccl, gloo and so on; null without a process group |
| `communications` | the first ones of each process group: `group`, `size` in ranks, `call`, `t_ns` of its return |
| `libraries` | context_bytes, library_bytes, source; absent if not measured |
| `precision` | autocast, float32_frac: whether autocast was used, and the share of parameters in 32 bits |
| `optimizers` | name, step_module, has, uses, without, devices, is_floating: which forms of the update exist |
"""

JOURNAL_ROWS = {
    "events": "an entry of the allocator's history, or of the CPU recorder",
    "tags": "meaning of a tag on an event: module, phase and scope of the allocating thread",
    "snapshots": "a snapshot of all segments and blocks, and the number of events before it",
    "snapshot_segments": "a segment in a snapshot",
    "snapshot_blocks": "a block in a snapshot",
    "identities": "a storage of a weight, buffer, gradient, optimizer state or input, and the time it was seen",
    "storage_parts": "the same of a tensor that shares a storage with those of other modules, and its place in it",
    "counters": "the allocator's counters at one time",
    "samples": "a sample of the GPU's memory",
    "process_samples": "memory of one process on the GPU",
    "steps": "a step",
    "activities": "an event of the timing measurement, from PyTorch's profiler",
    "operators": "one operator in the recorded steps of a program on a CPU; names in the fact `timed_operators`",
    "captures": "an operator in the capture of a CUDA graph, or a launch into the graph",
    "sensors": "a sample of the GPU's slower sensors, at the time of a row of samples",
    "windows": "an energy window",
    "ticks": "a change of a GPU's energy counter",
    "step_memory": "counters at the end of a step; sizes in units of 512 B, `host` in units of 4 KiB",
    "failure_blocks": "a block at an out-of-memory error",
    "failure_segments": "a segment at an out-of-memory error",
    "failure_events": "one of the allocator's last events before an out-of-memory error",
    "failure_stacks": "one per Python stack that a block, or one of the last events, has at an out-of-memory error",
    "pauses": "a time in which the recorder stopped the program",
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
            f"Categories: {', '.join(CATEGORIES)}. Breakdowns also have `{ROUNDING}`.\n",
            f"Phases: {', '.join(PHASES)}.\n",
            f"Device lines of the balance: {', '.join(DEVICE_LINES)}.\n",
            f"`counters.reason` and pauses: {', '.join(REASONS)}. `steps.kind`: {', '.join(STEP_KINDS)}.\n",
            "The category comes from the block's storage if gpuledger knows it. Such storages belong to parameters,",
            "buffers, gradients, optimizer state and arguments of the outermost module. Otherwise, the first matching",
            "rule of the second table applies.\n",
            "| word | meaning |\n| --- | --- |",
            "| same visit | freed before its phase ended |",
            "| later | freed in a later phase or step; in forward also when it ran out of memory |",
            "| kept | never freed, and older than its step |",
            "| alive | not freed when the recording ended inside its step |\n",
            grid(("rule", "category", "allocated in", "ended", "why"), rules),
        ]
    )


def journal() -> str:
    """Return the section of the journal."""
    rows = [
        (f"`{table}`", JOURNAL_ROWS[table], ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))
        for table, columns in COLUMNS.items()
    ]
    codes = [
        (title, f"`{', '.join(f'{member.value} {member.name.lower()}' for member in enumeration)}`")
        for title, enumeration in (
            ("`events.action`", Action),
            ("`snapshot_blocks.state`", BlockState),
            ("`identities.kind`", Identity),
            ("`tags.flags` (bits)", TagFlag),
        )
    ]
    return "\n".join(
        [
            "## Raw events\n",
            f"The files in `journal/` have version {JOURNAL_VERSION} of their own, which can change between releases:",
            "read the tables instead. They are numbered `.npz` files without pickle. An array is named `table.column`,",
            "and `text` contains names, modules, stacks and notes as JSON.\n",
            grid(("table", "row", "columns"), rows),
            "In columns of ids, -1 is none. These columns have codes:\n",
            grid(("column", "codes"), codes),
        ]
    )


def grid(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
