"""Beyond the range: what is larger than all that was measured comes to the best of its kind, and nothing else moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.predict.beyond import HALF_WAY, Best, best_of, drawn_to_best
from gpuledger.ops.predict.law import LEAST_EXAMPLES, Operation, kind_of
from gpuledger.ops.predict.roof import Roof
from gpuledger.ops.workloads.describe_json import tensor

ROOF = Roof("card", {"float32": 60.0}, 4.8e3, 132, 700.0, 50 << 20, "datasheet")


def product(m: int, k: int = 4096, n: int = 4096) -> Operation:
    key = OperatorKey("aten.mm.default", (tensor((m, k), "float32"), tensor((k, n), "float32")))
    return Operation(key, work_of(key), ())


EXAMPLES = [product(16 * number) for number in range(1, LEAST_EXAMPLES + 1)]
LARGEST = 16 * LEAST_EXAMPLES
KIND = kind_of(EXAMPLES[0])


def test_the_best_is_of_the_larger_half() -> None:
    target = np.concatenate([np.full(LEAST_EXAMPLES // 2, -3.0), np.linspace(0.2, 1.2, LEAST_EXAMPLES // 2)])
    best = best_of(EXAMPLES, target, ROOF)[KIND]
    assert best.share == pytest.approx(0.3)
    assert best.largest_ns == pytest.approx(EXAMPLES[-1].work.flops / 60.0)


def test_few_examples_and_what_follows_no_law_have_none() -> None:
    relu = OperatorKey("aten.relu.default", (tensor((64, 64), "float32"),))
    operations = [*EXAMPLES[1:], *[Operation(relu, work_of(relu), ())] * 100]
    assert best_of(operations, np.zeros(len(operations)), ROOF) == {}
    assert drawn_to_best(operations, np.ones(len(operations)), {}, ROOF).tolist() == [0.0] * len(operations)


def test_half_of_the_way_is_gone_in_so_many_doublings() -> None:
    best = {KIND: Best(0.25, EXAMPLES[-1].work.flops / 60.0)}
    asked = [product(LARGEST), product(int(LARGEST * 2**HALF_WAY)), product(int(LARGEST * 4**HALF_WAY))]
    assert drawn_to_best(asked, np.full(3, 1.25), best, ROOF) == pytest.approx([0.0, -0.5, -0.75])


@given(rows=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=20), middle=st.floats(-2, 2), share=st.floats(-2, 2))
def test_none_is_told_longer_nor_better_than_the_best_and_those_within_stay(
    rows: list[int], middle: float, share: float
) -> None:
    best = {KIND: Best(share, EXAMPLES[-1].work.flops / 60.0)}
    drawn = drawn_to_best([product(m) for m in rows], np.full(len(rows), middle), best, ROOF)
    assert (drawn <= 0).all()
    assert (middle + drawn >= min(middle, share) - 1e-9).all()
    assert (drawn[np.array(rows) <= LARGEST] == 0).all()
