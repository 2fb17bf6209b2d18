"""Out-of-memory errors: why, what held the memory, and what would have let the request pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.groups import group_accounts
from gpuledger.analyze.memory.tree import ROUNDING_PATH
from gpuledger.model.accounts import ROUNDING
from gpuledger.model.flight_facts import ANOTHER_THREAD
from gpuledger.report.base.phrases import Unit, after_steps, entry
from gpuledger.report.base.terminal import BOLD, MISSING, TextColumn, TextTable
from gpuledger.units import counted, device_label, format_bytes, format_frac

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuledger.analyze.memory.failures.failed_request import FailedState
    from gpuledger.analyze.memory.failures.oom import OutOfMemory
    from gpuledger.analyze.memory.failures.oom_remedies import Remedy
    from gpuledger.analyze.view.view import RunView
    from gpuledger.model.run import Rank
    from gpuledger.report.base.terminal import Terminal

CELLS = 20
"""Column of the texts after the labels."""
LARGEST = 3
MOST_LATER = 4
"""Number of errors of other ranks that are shown."""
_LAST_STEPS = "Last steps"
_MIB = Unit("MiB", 1 << 20)
VERDICTS = {True: "would have fitted", False: "would not have fitted", None: "not known"}
_ENOUGH = {True: "enough", False: "not enough", None: "not known"}


def failure_lines(view: RunView, terminal: Terminal) -> list[str]:
    """Return the out-of-memory errors of a run.

    Of several ranks, those of the rank that failed first are complete. The others have a line each.
    """
    if not view.out_of_memory:
        return []
    first = view.out_of_memory[0][0]
    lines = entry(terminal, "Ranks", *view.ran_out, cells=CELLS)
    for rank, failure in view.out_of_memory:
        if rank is first:
            lines += out_of_memory_lines(rank, failure, terminal)
    later = [request_text(rank, failure) for rank, failure in view.out_of_memory if rank is not first]
    left_out = [f"and {counted(len(later) - MOST_LATER, 'more error')}"] if len(later) > MOST_LATER else []
    return lines + entry(terminal, "Then", *later[:MOST_LATER], *left_out, cells=CELLS)


def out_of_memory_lines(rank: Rank, failure: OutOfMemory, terminal: Terminal) -> list[str]:
    """Return why the request failed, free memory, the largest users of memory, the last steps, and what would help."""
    texts = [] if failure.cause is None else [failure.cause.sentence]
    texts += [text for text in (request_text(rank, failure), *memory_texts(failure)) if text]
    lines = entry(terminal, "Out of memory", *texts, cells=CELLS)
    lines += _last_step_lines(failure, terminal)
    remedies = [remedy_text(one) for one in failure.remedies]
    return lines + entry(terminal, "To fit the request", *remedies, cells=CELLS)


def request_text(rank: Rank, failure: OutOfMemory) -> str:
    """Return what was asked for, where, and what was free."""
    return ", ".join(_request(rank, failure))


def remedy_text(remedy: Remedy) -> str:
    """Return a change after whether it would have been enough for the request."""
    freed = f", frees {format_bytes(remedy.saving_bytes)}" if remedy.saving_bytes else ""
    note = f"; {remedy.note}" if remedy.note else ""
    return f"{_ENOUGH[remedy.fits]}: {remedy.action}{freed}{note}"


def memory_texts(failure: OutOfMemory) -> list[str]:
    """Return which error ended the program, what held the memory, what else did, and the free memory of no use."""
    return [*_ended(failure), *_held(failure), *_besides(failure), *_free(failure)]


def last_steps_table(failure: OutOfMemory) -> tuple[list[str], list[list[str]]]:
    """Return the titles and rows of a table of the last steps, sizes in MiB. Columns without a value are left out."""
    columns = {
        "step": [f"{one.step:,}" for one in failure.last_steps],
        "allocated, MiB": [_MIB.amount(one.allocated_bytes) for one in failure.last_steps],
        "highest so far": [_MIB.amount(one.peak_allocated_bytes) for one in failure.last_steps],
        "reserved": [_MIB.amount(one.reserved_bytes) for one in failure.last_steps],
        "blocks": [_number(one.blocks) for one in failure.last_steps],
        "retries": [_number(one.retries) for one in failure.last_steps],
        "host memory, MiB": [_MIB.amount(one.host_bytes) for one in failure.last_steps],
    }
    known = {title: texts for title, texts in columns.items() if any(text != MISSING for text in texts)}
    return list(known), [list(row) for row in zip(*known.values(), strict=True)]


def _last_step_lines(failure: OutOfMemory, terminal: Terminal) -> list[str]:
    """Return the table of the last steps, to the right of its label or below it."""
    titles, rows = last_steps_table(failure)
    if len(titles) < 2:
        return []
    columns = [TextColumn(title, right=True, optional=max(number - 1, 0)) for number, title in enumerate(titles)]
    table = TextTable(tuple(columns), tuple(map(tuple, rows)))
    room = None if terminal.width_cells is None else terminal.width_cells - CELLS
    if room is not None and room < 2 * CELLS:
        lines = table.lines(replace(terminal, width_cells=room + CELLS - 2))
        return [terminal.styled(_LAST_STEPS, BOLD), *(f"  {line}" for line in lines)]
    first, *others = table.lines(replace(terminal, width_cells=room))
    label = terminal.styled(_LAST_STEPS, BOLD) + " " * (CELLS - len(_LAST_STEPS))
    return [label + first, *(" " * CELLS + line for line in others)]


def _number(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _request(rank: Rank, failure: OutOfMemory) -> list[str]:
    if failure.device_idx < 0:
        return _host_request(rank, failure)
    by = f" of {failure.library}" if failure.library else ""
    tried = f"an allocation{by}" if failure.tried_bytes is None else format_bytes(failure.tried_bytes)
    number = rank.number_of_several
    where = device_label(failure.device_idx) + ("" if number is None else f" of rank {number}")
    when = "" if failure.step is None or failure.state is None else f" in step {failure.step:,}"
    parts = [f"{tried} did not fit on {where}{when}", *_place(failure)]
    if failure.free_bytes is not None:
        # With set_per_process_memory_fraction, the allocator's total is that limit.
        is_limit = failure.total_bytes is not None and failure.free_bytes > failure.total_bytes
        total = rank.manifest.device(failure.device_idx).total_bytes if is_limit else failure.total_bytes
        of_total = f" of {format_bytes(total)}" if total else ""
        parts.append(f"free on the GPU: {format_bytes(failure.free_bytes)}{of_total}")
    if failure.largest_free_bytes is not None:
        parts.append(f"largest free block: {format_bytes(failure.largest_free_bytes)}")
    return [*parts, *_times(failure)]


def _times(failure: OutOfMemory) -> list[str]:
    """Return how many errors like this one there were; nothing of a single one."""
    if failure.times <= 1:
        return []
    last = failure.last_tried_bytes
    of_last = (
        ""
        if last in (None, failure.tried_bytes) or failure.ending is not None
        else f", the last one for {format_bytes(last)}"
    )
    return [f"{counted(failure.times, 'error')} of this kind{of_last}"]


def _host_request(rank: Rank, failure: OutOfMemory) -> list[str]:
    """Return the step and line of a request for host memory. The cause has the sizes."""
    if failure.is_kill:
        return [text] if (text := after_steps(rank.manifest)) else []
    parts = [] if failure.step is None else [f"in step {failure.step:,}"]
    return parts + _place(failure) + _times(failure)


def _place(failure: OutOfMemory) -> list[str]:
    """Return the line, the phase, the module with its inputs, and the thread."""
    parts = []
    if failure.line:
        parts.append(f"asked for at {failure.line}")
    module = f"{failure.module}{' by order' if failure.is_module_by_order else ''}" if failure.module else ""
    if failure.in_backward:
        parts.append(f"in backward{f' of {module}' if module else ''}")
    elif module:
        parts.append(f"module {module}")
    if failure.thread:
        parts.append(f"in {'' if failure.thread == ANOTHER_THREAD else 'thread '}{failure.thread}")
    if failure.is_capturing:
        parts.append("while a CUDA graph was captured")
    if failure.inputs and failure.module:
        parts.append(f"inputs {', '.join(' × '.join(f'{size:,}' for size in shape) for shape in failure.inputs)}")
    return parts


def _ended(failure: OutOfMemory) -> list[str]:
    """Return the request of the last of several errors, if it ended the program."""
    last = failure.ending
    if last is None or failure.times == 1 or last.tried_bytes is None:
        return []
    when = "" if last.step is None else f" in step {last.step:,}"
    place = _place(
        replace(failure, line=last.line, module=last.module, is_module_by_order=False, inputs=last.inputs, thread="")
    )
    return [
        ", ".join([f"the last of them ended the program: {format_bytes(last.tried_bytes)} did not fit{when}", *place])
    ]


def _held(failure: OutOfMemory) -> list[str]:
    if failure.holders is not None:
        return [
            "held by " + _sizes(_accounts(failure, word)) for word in ("category", "module") if _accounts(failure, word)
        ]
    state = failure.state
    if state is None or not state.blocks:
        return []
    texts = ["held by " + _sizes(sizes) for sizes in (state.categories, state.modules, state.lines) if sizes]
    known = format_frac(state.known_frac, 0)
    return [
        *texts,
        *_lines_known(state),
        f"known from the recorded steps: {known} of {format_bytes(state.allocated_bytes)} in use",
    ]


def _lines_known(state: FailedState) -> list[str]:
    """Return for how much of the memory the line is known, for how much it is inferred, and for how much it is not."""
    rest = state.allocated_bytes - state.line_known_bytes - state.line_inferred_bytes
    kinds = {
        "known": state.line_known_bytes,
        "by order and size": state.line_inferred_bytes,
        "unknown": rest,
    }
    return _listed("source lines", kinds) if state.lines else []


def _accounts(failure: OutOfMemory, word: str) -> dict[str, int]:
    """Return label -> bytes, largest first, without rounding."""
    assert failure.holders is not None
    groups = group_accounts(failure.holders.accounts, word)
    return {group.label: group.bytes for group in groups if group.label not in (ROUNDING, ROUNDING_PATH)}


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in list(sizes.items())[:LARGEST])


def _besides(failure: OutOfMemory) -> list[str]:
    """Return what else used the GPU's memory."""
    besides = failure.besides
    kinds = {
        "by other processes": besides.other_process_bytes,
        "by this process outside PyTorch (context, libraries)": besides.own_bytes,
        "outside PyTorch (context, libraries, other processes)": besides.undivided_bytes,
    }
    return _listed("also used on the GPU", kinds)


def _free(failure: OutOfMemory) -> list[str]:
    """Return the free memory inside the process's segments, by whether this request could use it. No library can."""
    if failure.state is None or failure.library:
        return []
    free = failure.state.free
    ends = "the end" if free.tails == 1 else "the ends"
    missing = format_bytes((failure.tried_bytes or 0) - free.largest_tail_bytes)
    at_ends = f"at {ends} of {counted(free.tails, 'expandable segment')} that could not grow by {missing}"
    kinds = {
        f"usable in {counted(free.pieces, 'piece')} of at most {format_bytes(free.largest_bytes)}": free.usable_bytes,
        at_ends: free.tail_bytes,
        "of another stream": free.other_stream_bytes,
        "in private pools": free.private_pool_bytes,
        "in the pool of other block sizes": free.other_size_bytes,
    }
    return _listed("free in reserved memory", kinds)


def _listed(what: str, kinds: Mapping[str, int | None]) -> list[str]:
    """Return a line with the sizes of each kind; nothing without any."""
    texts = [f"{format_bytes(size)} {kind}" for kind, size in kinds.items() if size]
    return [f"{what}: {', '.join(texts)}"] if texts else []
