"""Laws: what kernels that follow one another take is learned as so many times the least of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.predict.law import LEAST_EXAMPLES, Operation, _parts, kind_of, learn_laws, times_ns
from gpuledger.ops.predict.roof import FLOOR_NS, Roof
from gpuledger.ops.workloads.describe_json import tensor

ROOF = Roof("card", {"float32": 60.0, "tf32": 400.0}, 4.8e3, 132, 700.0, 50 << 20, "datasheet")
FACTORS = (3.0, 0.0, 0.5, 1.0, 1.2, 2.0)


def convolution(channels: int, size: int, kernel: int = 3, groups: int = 1) -> Operation:
    image, weight = tensor((32, channels, size, size), "float32"), (channels, channels // groups, kernel, kernel)
    inputs = (image, tensor(weight, "float32"), None, [1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], groups)
    key = OperatorKey("aten.convolution.default", inputs, {"tf32": True})
    return Operation(key, work_of(key), (channels * size * size * 32 * 8,))


def product(m: int, k: int, n: int) -> Operation:
    key = OperatorKey("aten.mm.default", (tensor((m, k), "float32"), tensor((k, n), "float32")))
    return Operation(key, work_of(key), ())


def drawn(count: int, seed: int = 0) -> list[Operation]:
    random = np.random.default_rng(seed)
    return [convolution(int(random.integers(8, 500)), int(random.integers(4, 60))) for _ in range(count)]


def law_ns(operation: Operation) -> float:
    return float(np.dot(FACTORS, _parts(operation, ROOF)))


def test_a_law_is_found_again_and_holds_far_beyond_what_it_was_learned_from() -> None:
    operations = drawn(80)
    laws = learn_laws(operations, np.array([law_ns(operation) for operation in operations]), ROOF)
    assert laws["convolution, dense"] == pytest.approx(FACTORS, abs=0.02)
    large = convolution(1024, 200, 5)
    assert times_ns([large], ROOF, laws)[0] == pytest.approx(law_ns(large), rel=0.01)


def test_a_few_far_off_do_not_bend_it() -> None:
    operations = drawn(100)
    took_ns = np.array([law_ns(operation) for operation in operations])
    took_ns[::20] *= 5
    said_ns = times_ns(drawn(30, 1), ROOF, learn_laws(operations, took_ns, ROOF))
    assert said_ns == pytest.approx([law_ns(operation) for operation in drawn(30, 1)], rel=0.15)


def test_with_few_examples_and_for_other_operators_the_roof_is_the_law() -> None:
    operations = drawn(LEAST_EXAMPLES - 1)
    assert learn_laws(operations, np.ones(len(operations)), ROOF) == {}
    relu = OperatorKey("aten.relu.default", (tensor((64, 64), "float32"),))
    other = Operation(relu, work_of(relu), ())
    assert kind_of(other) == ""
    asked = [other, operations[0], product(64, 64, 64)]
    assert times_ns(asked, ROOF, {}) == pytest.approx([ROOF.time_ns(one.key, one.work) for one in asked])


def test_a_product_takes_its_launches_and_its_roof() -> None:
    operations = [product(2**a, 2**b, 2**c) for a in range(5, 9) for b in range(5, 9) for c in range(5, 9)]
    took_ns = np.array(
        [2 * FLOOR_NS + 1.4 * (ROOF.time_ns(operation.key, operation.work) - FLOOR_NS) for operation in operations]
    )
    laws = learn_laws(operations, took_ns, ROOF)
    assert laws == {"matmul, common cores": pytest.approx((2.0, 1.4), abs=0.01)}


def test_kinds_are_apart_where_kernels_are() -> None:
    kinds = {kind_of(convolution(64, 14, groups=groups)) for groups in (1, 2, 64)} | {kind_of(product(8, 8, 8))}
    half = product(8, 8, 8)
    kinds.add(kind_of(replace(half, key=OperatorKey("aten.mm.default", (tensor((8, 8), "bfloat16"),) * 2))))
    assert len(kinds) == 5


def test_nothing_takes_less_than_a_kernel_that_does_nothing() -> None:
    assert times_ns([convolution(8, 4)], ROOF, {"convolution, dense": (0.0,) * 6})[0] == FLOOR_NS


@pytest.mark.parametrize(("groups", "is_wide"), [(2, True), (4, True), (5, False), (64, False)])
def test_wide_groups_follow_convolutions_without_groups_until_they_have_a_law(groups: int, is_wide: bool) -> None:
    one, dense = convolution(75 if groups == 5 else 64, 14, groups=groups), (1.0,) * 6
    roofline_ns, dense_ns = ROOF.time_ns(one.key, one.work), float(np.dot(dense, _parts(one, ROOF)))
    assert roofline_ns != pytest.approx(dense_ns)
    (alone_ns,) = times_ns([one], ROOF, {"convolution, dense": dense})
    assert alone_ns == pytest.approx(dense_ns if is_wide else roofline_ns)
    own = (2.0,) * 6
    (own_ns,) = times_ns([one], ROOF, {"convolution, dense": dense, kind_of(one): own})
    assert own_ns == pytest.approx(2 * dense_ns)


def test_other_kinds_have_no_law_but_their_own() -> None:
    one = product(64, 64, 64)
    (found_ns,) = times_ns([one], ROOF, {"convolution, dense": (1.0,) * 6})
    assert found_ns == ROOF.time_ns(one.key, one.work)
