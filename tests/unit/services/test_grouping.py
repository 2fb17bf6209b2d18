"""Grouping a run by keywords from Python, as ``gpuledger group`` does."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import load_run

from gpuledger.errors import InputError
from gpuledger.services.grouping import GroupingRequest, group_places, propose_keywords_for, read_keywords


def test_every_place_is_grouped_by_what_was_proposed_for_it(tmp_path: Path) -> None:
    run = load_run(tmp_path / "a.ledger", blocks=2_000, modules=20)
    places = [(run.ranks[0], 0)]
    (by_default,) = group_places(places, GroupingRequest())
    file = tmp_path / "mine.toml"
    file.write_text(propose_keywords_for(places))
    proposed = read_keywords(str(file))
    (grouping,) = group_places(places, GroupingRequest(proposed))
    assert len(by_default.dictionaries) == 2
    assert len(grouping.dictionaries) == len(proposed.dictionaries)
    with pytest.raises(InputError, match="--keywords"):
        read_keywords(str(tmp_path / "absent.toml"))
