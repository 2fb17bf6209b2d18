"""FLOPs and bytes from keys alone, against torch's own counter and against the tensors that operators really make."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_keys import key_for
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpuledger.analyze.operator_work.formulas import family_of, work_of
from gpuledger.ops.predict.features import NAMES, features_of, shape_family
from gpuledger.ops.predict.roof import FLOOR_NS, Roof, compute_type, roof_of_measurements

aten = torch.ops.aten
sizes = st.integers(1, 24)
ROOF = Roof("card", {"float32": 60.0, "bfloat16": 900.0}, 4.8, 132, 700.0, 50 << 20, "datasheet")


def counted(func: Callable[..., Any], *args: object) -> tuple[int, Any]:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        made = func(*args)
    return counter.get_total_flops(), made


@settings(max_examples=15)
@given(sizes, sizes, sizes, sizes)
def test_products_have_the_flops_that_torch_counts(batch: int, m: int, n: int, k: int) -> None:
    for func, args in (
        (aten.mm.default, (torch.ones(m, k), torch.ones(k, n))),
        (aten.addmm.default, (torch.ones(n), torch.ones(m, k), torch.ones(k, n))),
        (aten.bmm.default, (torch.ones(batch, m, k), torch.ones(batch, k, n))),
        (aten.baddbmm.default, (torch.ones(batch, m, n), torch.ones(batch, m, k), torch.ones(batch, k, n))),
    ):
        flops, made = counted(func, *args)
        work = work_of(key_for(func, *args))
        assert work.family == "matmul"
        assert work.flops == flops
        assert work.written_bytes == made.nbytes
        assert work.read_bytes == sum(tensor.nbytes for tensor in args)


@settings(max_examples=20)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(8, 14),
    st.integers(1, 3),
    st.booleans(),
    st.data(),
)
def test_convolutions_have_the_flops_and_the_output_that_torch_makes(
    batch: int, inner: int, outer: int, size: int, kernel: int, transposed: bool, data: st.DataObject
) -> None:
    groups = data.draw(st.sampled_from([1, 2, 4]))
    stride, padding, dilation = (data.draw(st.integers(low, 2)) for low in (1, 0, 1))
    x = torch.ones(batch, inner * groups, size, size)
    shape = (inner * groups, outer) if transposed else (outer * groups, inner)
    args = (
        x,
        torch.ones(*shape, kernel, kernel),
        None,
        [stride] * 2,
        [padding] * 2,
        [dilation] * 2,
        transposed,
        [0] * 2,
        groups,
    )
    flops, made = counted(aten.convolution.default, *args)
    work = work_of(key_for(aten.convolution.default, *args))
    assert work.flops == flops
    assert work.written_bytes == made.nbytes
    assert (work.groups, work.kernel, work.stride) == (groups, kernel * kernel, stride)


@pytest.mark.parametrize("mask", [[True, True, False], [False, True, False], [True, False, False]])
def test_a_convolutions_gradients_have_the_flops_that_torch_counts(mask: list[bool]) -> None:
    x, weight = torch.ones(2, 6, 9, 9), torch.ones(8, 6, 3, 3)
    args = (torch.ones(2, 8, 9, 9), x, weight, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
    flops, made = counted(aten.convolution_backward.default, *args)
    work = work_of(key_for(aten.convolution_backward.default, *args))
    assert work.flops == flops
    assert work.written_bytes == sum(one.nbytes for one in made[:2] if one is not None)


def test_attention_has_two_products_forward_and_five_backward() -> None:
    q, k, v = torch.ones(2, 3, 7, 16), torch.ones(2, 3, 11, 16), torch.ones(2, 3, 11, 16)
    name = aten._scaled_dot_product_flash_attention_for_cpu.default
    out, lse = name(q, k, v)
    work = work_of(key_for(name, q, k, v))
    assert work.flops == 2 * 2 * 2 * 3 * 7 * 11 * 16
    assert work.written_bytes == out.nbytes
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert work_of(key_for(backward, out, q, k, v, out, lse, 0.0, False)).flops == 5 / 2 * work.flops


def test_a_layer_of_attention_has_its_projections_and_two_products() -> None:
    """In evaluation, ``nn.MultiheadAttention`` is one operator. In training it is several, which torch counts."""
    layer, x = nn.MultiheadAttention(24, 3, batch_first=True), torch.ones(2, 7, 24)
    flops, (made, _) = counted(layer, x, x, x)
    weights = (layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias)
    work = work_of(key_for(aten._native_multi_head_attention.default, x, x, x, 24, 3, *weights, None, False))
    assert work.family == "attention"
    assert work.flops == flops
    assert work.written_bytes == made.nbytes


def test_a_lookup_reads_the_rows_it_takes_and_not_the_whole_table() -> None:
    table, rows = torch.ones(50_000, 64), torch.zeros(3, 5, dtype=torch.int64)
    work = work_of(key_for(aten.embedding.default, table, rows))
    assert work.family == "embedding"
    assert work.written_bytes == 15 * 64 * 4
    assert work.read_bytes == 15 * 64 * 4 + 15 * 8


@pytest.mark.parametrize(
    ("func", "family"),
    [
        (aten.native_layer_norm.default, "normalization"),
        (aten._softmax.default, "softmax"),
        (aten.max_pool2d_with_indices.default, "pooling"),
        (aten.add.Tensor, "elementwise"),
        (aten.add_.Tensor, "elementwise"),
        (aten.sum.dim_IntList, "reduction"),
        (aten.cat.default, "copy"),
        (aten._foreach_add_.List, "optimizer"),
        (aten.nonzero.default, "other"),
    ],
)
def test_an_operator_belongs_to_a_family(func: Callable[..., Any], family: str) -> None:
    assert family_of(key_for(func, torch.ones(2, 2))) == family


@settings(max_examples=20)
@given(sizes, sizes)
def test_every_operator_has_all_features_and_a_least_time(rows: int, columns: int) -> None:
    x = torch.ones(rows, columns)
    keys = [
        key_for(aten.relu.default, x),
        key_for(aten.mm.default, x, torch.ones(columns, 4)),
        key_for(aten._softmax.default, x, -1, False),
        key_for(aten.t.default, x),
        key_for(aten.arange.default, 4),
    ]
    rows_of = features_of(keys, [True, False, False, True, False], ROOF)
    assert rows_of.values.shape == (len(keys), len(NAMES))
    assert all(ROOF.time_ns(key, work_of(key)) > 0 for key in keys)


def test_features_of_a_product_say_how_full_its_tiles_and_waves_are() -> None:
    found = features_of([key_for(aten.mm.default, torch.ones(128, 64), torch.ones(64, 192))], [False], ROOF)
    values = dict(zip(NAMES, found.values[0], strict=True))
    assert values["tile_fill_128x128"] == 0.75
    assert values["wave_fill_128x128"] == pytest.approx(2 / 132)
    assert values["even_k"] == 7  # 64 divides it
    assert np.isnan(values["kernel_height"])


MOVERS = [
    (aten.cat.default, ([torch.ones(2, 3, 5), torch.ones(2, 4, 5)], 1)),
    (aten.new_zeros.default, (torch.ones(7, 9), [3, 5])),
    (aten.fill_.Scalar, (torch.ones(7, 9), 2.0)),
    (aten.clone.default, (torch.ones(3, 1).expand(3, 8),)),
    (aten.constant_pad_nd.default, (torch.ones(2, 3), [1, 2, 0, 4])),
    (aten.add.Tensor, (torch.ones(4, 1, 6), torch.ones(5, 1))),
    (aten.div.Scalar, (torch.ones(3, 1).expand(3, 8), 2.0)),
    (aten.eq.Scalar, (torch.ones(6, 7), 1.0)),
    (aten.masked_fill.Scalar, (torch.ones(6, 7), torch.ones(6, 7) > 0, 0.0)),
    (aten.mean.dim, (torch.ones(2, 3, 4, 5), [-1, -2], True)),
    (aten.sum.dim_IntList, (torch.ones(6, 7), [0])),
    (aten.max_pool2d_with_indices.default, (torch.ones(2, 3, 9, 11), [3, 3], [2, 2], [1, 1])),
    (aten.max_pool2d_with_indices.default, (torch.ones(2, 3, 10, 11), [3, 3], [2, 2], [0, 0], [1, 1], True)),
    (
        aten.max_pool2d_with_indices_backward.default,
        (
            *[torch.ones(2, 3, 9, 11)] * 2,
            [3, 3],
            [1, 1],
            [1, 1],
            [1, 1],
            True,
            torch.zeros(2, 3, 9, 11, dtype=torch.int64),
        ),
    ),
    (
        aten.avg_pool2d_backward.default,
        (torch.ones(2, 3, 4, 5), torch.ones(2, 3, 9, 11), [2, 2], [], [0, 0], False, True, None),
    ),
    (aten._adaptive_avg_pool2d_backward.default, (torch.ones(2, 3, 4, 4), torch.ones(2, 3, 9, 11))),
    (aten.avg_pool2d.default, (torch.ones(2, 3, 9, 11), [2, 2])),
    (aten._adaptive_avg_pool2d.default, (torch.ones(2, 3, 9, 11), [4, 4])),
    (aten.index.Tensor, (torch.ones(9, 4), [torch.tensor([1, 2, 2])])),
    (aten.native_dropout.default, (torch.ones(6, 7), 0.5, True)),
    (aten.arange.default, (12,)),
]


@pytest.mark.parametrize(("func", "args"), MOVERS, ids=[str(func) for func, _ in MOVERS])
def test_what_is_written_is_as_large_as_what_torch_makes(func: Callable[..., Any], args: tuple[object, ...]) -> None:
    made = func(*args)
    results = made if isinstance(made, tuple) else (made,)
    work = work_of(key_for(func, *args))
    assert work.written_bytes == sum(one.numel() * one.element_size() for one in results)


def test_what_is_only_filled_is_not_read() -> None:
    work = work_of(key_for(aten.new_zeros.default, torch.ones(700, 900), [3, 5]))
    assert (work.read_bytes, work.flops) == (0, 0)
    copied = work_of(key_for(aten.copy_.default, torch.ones(8, 8), torch.ones(8)))
    assert (copied.read_bytes, copied.written_bytes) == (8 * 4, 64 * 4)


def test_a_concatenation_launches_a_kernel_for_each_piece_that_is_not_empty() -> None:
    pieces = [torch.ones(2, 3), torch.ones(0), torch.ones(2, 4)]
    assert work_of(key_for(aten.cat.default, pieces, 1)).launches == 2
    assert work_of(key_for(aten.relu.default, pieces[0])).launches == 1


def test_the_same_layer_at_another_batch_is_of_the_same_family_of_shapes() -> None:
    def product(m: int, k: int, n: int) -> str:
        return shape_family(key_for(aten.mm.default, torch.ones(m, k), torch.ones(k, n)))

    assert product(8, 16, 32) == product(64, 16, 32) != product(8, 16, 33)
    relu = [shape_family(key_for(aten.relu.default, torch.ones(n, 5, 5))) for n in (1, 9)]
    assert relu[0] == relu[1]


def test_a_product_with_few_tiles_takes_as_long_as_a_whole_wave() -> None:
    def least_ns(m: int, n: int) -> float:
        key = key_for(aten.mm.default, torch.ones(m, 512), torch.ones(512, n))
        return ROOF.time_ns(key, work_of(key)) - FLOOR_NS

    assert least_ns(64, 64) == least_ns(33, 64 * 132) == pytest.approx(2 * 64 * 64 * 512 * 132 / 60.0)
    assert least_ns(64, 64 * 133) == pytest.approx(2 * least_ns(64, 64))
    convolution = key_for(
        aten.convolution.default, torch.ones(1, 4, 8, 8), torch.ones(4, 4, 3, 3), None,
        [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
    )  # fmt: skip
    work = work_of(convolution)
    assert ROOF.time_ns(convolution, work) == pytest.approx(ROOF.least_ns(convolution, work) + FLOOR_NS)


def test_what_a_card_was_seen_to_do_is_its_roof_where_the_catalogue_has_none() -> None:
    key = key_for(aten.mm.default, torch.ones(64, 64), torch.ones(64, 64))
    roof = roof_of_measurements("CPU", [(key, work_of(key), 1_000.0), (key, work_of(key), 2_000.0)])
    assert roof.peak(key) == 2 * 64**3 / 1_000
    assert roof.source == "database"
    assert compute_type(key) == "float32"
