"""Commits that results name and that were rebased since, so that the history does not have them.

Each has the commit with which its results came into the history. What was measured is a little older than that commit.
A new result does not belong here: give the commit of `main` that you measure with ``BENCH_COMMIT``.
"""

from __future__ import annotations

REBASED = {
    "0e057f77d019": "9380ee5a",  # time/results/cpu/sharded_hooks.json
    "5be343c615bb": "08cc33db",  # estimate/results/cpu/cpu_tally_blind.json
    "842f5fc9": "fb8af8dc",  # operators/results/h200/operator_pairs_unseen_later.json
    "8b6df0002a62": "3ffbb474",  # time/results/cpu/short_run.json
    "9a66895979be": "5e0b0bb4",  # house/results/cpu/mutants.json
    "9c97d9be0247b99c973add325026b27918333683": "d8d8bd7a",  # memory/results/cpu/leaks.json
    "b6501502a4fa": "9d82d944",  # time/results/cpu/generated_positions.json
    "cf44c2ba35ea": "fb8af8dc",  # operators/results/cpu/neusight.json
    "d407399faacd": "6101daba",  # estimate/results/h200/blind.json
    "f1450afb5f53": "c855c24b",  # estimate/results/cpu/cpu_tally_blind.json
    "fc4a53ddf81e": "d02bafc7",  # estimate/results/h200/blind_mixed.json
}


def commit_of(told: str) -> str:
    """Return what a page says of a result's commit, and whether files were changed."""
    commit, changed, _ = told.partition("+")
    place = f"a commit before {REBASED[commit][:7]}" if commit in REBASED else f"commit {commit[:7]}"
    return place + (" with changes" if changed else "")
