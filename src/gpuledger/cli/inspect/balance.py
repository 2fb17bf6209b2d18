"""``gpuledger balance``: the GPU's used bytes, line by line down to categories."""

from __future__ import annotations

import sys

import click

from gpuledger.cli.common import (
    at_option,
    choose_devices,
    choose_ranks,
    device_option,
    json_option,
    open_run,
    print_json,
    print_lines,
    print_notes,
    rank_option,
    run_argument,
)


@click.command(
    "balance",
    epilog="""\b
Examples:
  gpuledger balance train.ledger
  gpuledger balance train.ledger --at end --json""",
)
@run_argument()
@at_option()
@rank_option()
@device_option()
@json_option()
def balance_command(run_path: str, at: str, rank_text: str | None, device_idx: int | None, as_json: bool) -> None:
    """Break down all memory in use on the GPU.

    The lines go from the capacity of the GPU to the categories of allocated memory, each with its source. Memory that
    no line explains is shown as unaccounted. A dash means that a line could not be measured.
    """
    places = choose_devices(choose_ranks(open_run(run_path), rank_text), device_idx)
    from gpuledger.analyze.memory.instant import module_classes
    from gpuledger.analyze.overview.balance import build_balance
    from gpuledger.analyze.ranks.rank_notes import label_notes
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.json.document import balance_document
    from gpuledger.report.text.run_summary import note_lines
    from gpuledger.report.text.tables import balance_lines

    balances = [(rank, build_balance(rank, device, at)) for rank, device in places]
    if as_json:
        documents = [balance_document(rank.number, balance) for rank, balance in balances]
        print_json(documents[0] if len(documents) == 1 else {**documents[0], "ranks": documents})
        return
    terminal = Terminal.of(sys.stdout)
    for position, (rank, balance) in enumerate(balances):
        lines = balance_lines(rank.number_of_several, balance, terminal, module_classes(rank))
        print_lines([*([""] if position else []), *lines])
    of_ranks = [(rank.number, note) for rank, balance in balances for note in balance.notes]
    notes = label_notes(of_ranks, [rank.number for rank, _ in balances])
    print_notes(note_lines(notes, Terminal.of(sys.stderr)))
