"""A compiled kernel of several modules is divided among them, and its time is kept."""

from __future__ import annotations

from types import SimpleNamespace as Thing
from typing import Any, cast

import numpy as np

from gpuledger.analyze.module_paths import ModulesBelow
from gpuledger.analyze.posting.activities import OwnedSpans
from gpuledger.analyze.posting.fused_work import divide_fused, kernel_names, shares_of
from gpuledger.analyze.posting.launched_work import SpanWork
from gpuledger.model.accounts import SPAN_KINDS
from gpuledger.model.journal.journal import FUSION_RANGE
from gpuledger.model.pass_facts import Fusion, FusionPart

MODULES = [
    {"root": 0, "path": ""},
    {"root": 0, "path": "a"},
    {"root": 0, "path": "a.fc"},
    {"root": 0, "path": "b"},
    {"root": 0, "path": "b.fc"},
]
SHARED = Fusion(
    file="c.py",
    line=3,
    kernel="triton_poi_fused_0",
    parts=(FusionPart(path="a.fc", moved_bytes=300), FusionPart(path="b", moved_bytes=100)),
)
OF_A_BLOCK = Fusion(file="c.py", line=9, kernel="mm", parts=(FusionPart(path="fc", module_id=2, moved_bytes=5),))


def spans(fusion_ids: list[int], module_ids: list[int], ns: int = 1000) -> OwnedSpans:
    count = len(fusion_ids)
    start = np.arange(count, dtype=np.int64) * 5000

    def full(value: int) -> Any:
        return np.full(count, value, dtype=np.int64)

    return OwnedSpans(
        kind=np.full(count, SPAN_KINDS.index("kernel"), dtype=np.int8),
        device_idx=full(0),
        stream=full(7),
        name_id=np.arange(count, dtype=np.int64),
        start_ns=start,
        end_ns=start + ns,
        module_id=np.array(module_ids, dtype=np.int64),
        phase=np.zeros(count, dtype=np.int8),
        step=full(1),
        operator_id=full(-1),
        scope_id=full(-1),
        launched_ns=full(-1),
        work=SpanWork(np.full(count, 8.0), np.full(count, np.nan), np.full(count, "", dtype=object)),
        fusion_id=np.array(fusion_ids, dtype=np.int64),
        is_replayed=np.zeros(count, dtype=bool),
        is_matched=np.zeros(count, dtype=bool),
        stack_id=full(-1),
    )


def divided(fusion_ids: list[int], module_ids: list[int], ns: int = 1000) -> list[tuple[int, int, int]]:
    """Return ``(start, end, module)`` of every span."""
    journal = cast("Any", Thing(modules=MODULES))
    found = divide_fused(spans(fusion_ids, module_ids, ns), (SHARED, OF_A_BLOCK), journal)
    assert float(found.work.flops.sum()) == 8.0 * len(fusion_ids)
    return list(zip(found.start_ns.tolist(), found.end_ns.tolist(), found.module_id.tolist(), strict=True))


def test_parts_follow_each_other_and_sum_to_the_kernel() -> None:
    assert divided([-1, 0, -1], [3, 0, 4]) == [
        (0, 1000, 3),
        (5000, 5750, 2),
        (5750, 6000, 3),
        (10000, 11000, 4),
    ]
    for ns in (1, 3, 7):
        parts = divided([0, 0], [0, 0], ns)
        assert [sum(end - start for start, end, _ in parts[first : first + 2]) for first in (0, 2)] == [ns, ns]


def test_a_kernel_is_on_the_module_below_the_one_that_ran() -> None:
    assert divided([1, 1, 1], [1, 3, -1]) == [(0, 1000, 2), (5000, 6000, 4), (10000, 11000, 2)]


def test_parts_of_one_module_are_divided_among_their_lines() -> None:
    parts = tuple(FusionPart(path="fc", moved_bytes=size, stack_id=line) for line, size in ((7, 300), (8, 75), (7, 25)))
    journal = cast("Any", Thing(modules=MODULES))
    found = divide_fused(spans([0, -1], [1, 1]), (Fusion(file="c.py", line=9, kernel="k", parts=parts),), journal)
    assert found.stack_id.tolist() == [7, 8, -1]
    assert (found.end_ns - found.start_ns).tolist() == [812, 188, 1000]
    assert found.module_id.tolist() == [2, 2, 1]


def test_a_kernel_that_matches_no_module_stays_on_the_calling_one() -> None:
    below = ModulesBelow(MODULES)
    assert below.find(4, "gone", 2) == 4
    assert below.find(-1, "gone", 99) == -1
    assert shares_of(below, Fusion(file="c.py", line=1, kernel="k"), 3) == [(3, -1, 1.0)]
    assert divided([99], [3]) == [(0, 1000, 3)]


def test_a_kernel_that_matches_no_path_is_on_the_module_it_was_compiled_for_if_that_is_inside() -> None:
    """As one of a list of layers, or called after a graph break: its path is not that of a module."""
    nested = [{"root": 0, "path": path} for path in ("", "h", "h.0", "hat")] + [{"root": 4, "path": ""}]
    below = ModulesBelow(nested)
    assert [below.find(base, "layers[0]", 2) for base in (0, 1, 3, 4)] == [2, 2, 3, 4]
    assert below.find(1, "layers[0]", 9) == 1


def test_a_wrapper_around_a_model_that_has_another_path_has_the_models_modules() -> None:
    below = ModulesBelow([*MODULES, {"root": 0, "path": "fast", "wraps": 3}, {"root": 6, "path": "", "wraps": 5}])
    assert below.find(5, "fc", -1) == 4
    assert below.find(6, "fc", -1) == 4
    damaged = ModulesBelow([*MODULES, {"root": 0, "path": "fast", "wraps": 5}])
    assert damaged.find(5, "fc", -1) == 5


def test_a_range_has_the_name_of_its_kernel() -> None:
    facts = {
        "activity_names": [f"{FUSION_RANGE}0", "aten::mm", f"{FUSION_RANGE}9", f"{FUSION_RANGE}x"],
        "fusions": [SHARED.to_json()],
    }
    assert kernel_names(facts) == ["triton_poi_fused_0", "aten::mm", f"{FUSION_RANGE}9", f"{FUSION_RANGE}x"]
