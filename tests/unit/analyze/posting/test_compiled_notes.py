"""What the notes of a run say of its compiled modules is true, also if nothing was compiled."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.analyze.posting.posting import FUNCTIONS_WITHOUT_MODULES, _notes_on_compiled
from gpuledger.model.journal.journal import Part
from gpuledger.model.journal.reading import journal_of

NOTHING = "1 module was to run compiled, and torch.compile has compiled nothing"
RUNS = "1 module runs compiled, and memory allocated in a compiled region is attributed to its outermost module"
REGION = {"source": "net.py:5", "function": "forward", "seconds": 1.0}
BREAK = {"source": "net.py:9", "reason": "call of print", "count": 1, "graphs": 0, "seconds": 0.0}


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({"graphs": 0}, NOTHING),
        ({"graphs": 0, "places": [BREAK]}, ""),  # the run says why, on the line of the break
        ({"graphs": 0, "places": [BREAK], "regions": [{**REGION, "compilations": 1}]}, ""),
        ({"graphs": 1, "regions": [{**REGION, "compilations": 0, "failure": "planted"}]}, ""),
        ({"graphs": 1, "regions": [{**REGION, "compilations": 1}]}, RUNS),
        (None, RUNS),  # compiled before the recording
    ],
)
def test_a_note_says_whether_a_module_runs_compiled(facts: dict[str, Any] | None, note: str) -> None:
    part = Part()
    part.modules.append({"path": "", "class_name": "Sequential", "parent": -1, "root": 0, "compiled": True})
    part.facts["called_roots"] = [0]
    if facts is not None:
        part.facts["compilation"] = facts
    found = _notes_on_compiled(journal_of([part]))
    assert len(found) == bool(note)
    assert all(one.startswith(note) for one in found)


@pytest.mark.parametrize(
    ("more", "is_said"),
    [({}, True), ({"compiled_graphs": 1}, False), ({"compiled_unread": {"": "planted"}}, False)],
    ids=["no modules reported", "modules reported", "modules lost"],
)
def test_a_note_says_that_compiled_functions_are_outside_modules(more: dict[str, Any], *, is_said: bool) -> None:
    part = Part()
    part.modules.append({"path": "", "class_name": "Sequential", "parent": -1, "root": 0, "compiled": False})
    part.facts.update(called_roots=[0], compilation={"graphs": 1, "regions": [{**REGION, "compilations": 1}]}, **more)
    assert _notes_on_compiled(journal_of([part])) == [FUNCTIONS_WITHOUT_MODULES] * is_said
