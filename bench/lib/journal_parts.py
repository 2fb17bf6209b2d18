"""A journal of many parts as one file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gpuledger.model.journal.reading import read_journal


def join_parts(journal_directory: Path, place: Path) -> None:
    """Write all parts of a journal as one compressed part."""
    journal = read_journal(journal_directory)
    if journal.damaged:
        raise SystemExit(f"{journal_directory}: {journal.damaged}")
    arrays = {f"{table}.{column}": v for table, columns in journal.tables.items() for column, v in columns.items()}
    text = {
        "journal_version": 1,
        "names": journal.names,
        "modules": journal.modules,
        "stacks": [[[Path(file).name, line, name] for file, line, name in stack] for stack in journal.stacks],
        "notes": journal.notes,
        "facts": journal.facts,
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(place, text=np.frombuffer(json.dumps(text).encode(), dtype=np.uint8), **arrays)
