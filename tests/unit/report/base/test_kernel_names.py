"""Short names of kernels, on names that CUPTI and PyTorch gave on an H200 and on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.step.work import names_of, read_work
from gpuledger.model.run import read_run
from gpuledger.report.base.kernel_names import short_kernel_name, short_kernel_names

RECORDINGS = Path(__file__).parents[3] / "recordings" / "passes"
VECTORIZED = "void at::native::vectorized_elementwise_kernel"
ARRAY = "std::array<char*, 3ul> "
MUL = "at::native::binary_internal::MulFunctor<float>"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            f"{VECTORIZED}<4, at::native::FillFunctor<float>, {ARRAY}>(int, at::native::FillFunctor<float>, {ARRAY})",
            "vectorized_elementwise_kernel",
        ),
        (
            "void at::native::(anonymous namespace)::compute_grad_weight<float, long>(long const*, float const*, "
            "at::AccumulateType<float, true>::type*, long)",
            "compute_grad_weight",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, 9, false, "
            "cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float const>, float> >(cublasGemvParamsEx<int>)",
            "gemvx::kernel",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>"
            "(cutlass_80_simt_sgemm_128x32_8x5_nn_align1::Params)",
            "cutlass_80_simt_sgemm_128x32_8x5_nn_align1",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize256x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
            "_execute_kernel__5x_cublas",
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize256x64x8",
        ),
        (
            "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortHistogramKernel<at_cuda_detail::cub::detail::"
            "radix::policy_hub<long, at::cuda::cub::detail::OpaqueType<8>, unsigned long long>::Policy1000, "
            "(at_cuda_detail::cub::SortOrder)0, long>(unsigned long long*, long const*)",
            "DeviceRadixSortHistogramKernel",
        ),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",) * 1
        + ("ncclDevKernel_AllReduce_Sum_f32_RING_LL",),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"),
        ("triton_poi_fused_add_relu_0", "triton_poi_fused_add_relu_0"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("_ZN2at6native18elementwise_kernelILi128EEvv", "elementwise_kernel"),
        ("void my_kernel(int)", "my_kernel"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0 (backward)"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "AccumulateGrad (backward)"),
        ("aten::linear", "aten::linear"),
        ("(idle)", "(idle)"),
        ("", ""),
    ],
)
def test_a_kernel_goes_by_its_own_name(name: str, short: str) -> None:
    assert short_kernel_name(name) == short


def test_kernels_of_one_name_are_told_apart_by_their_functor() -> None:
    names = [
        f"{VECTORIZED}<4, at::native::FillFunctor<float>, {ARRAY}>(int)",
        f"{VECTORIZED}<4, at::native::BinaryFunctor<float, float, float, {MUL} >, {ARRAY}>(int)",
        f"{VECTORIZED}<4, at::native::BUnaryFunctor<float, float, float, {MUL} >, {ARRAY}>(int)",
    ]
    assert list(short_kernel_names(names).values()) == [
        "vectorized_elementwise_kernel<FillFunctor>",
        "vectorized_elementwise_kernel<BinaryFunctor>",
        "vectorized_elementwise_kernel<BUnaryFunctor>",
    ]


def test_kernels_that_differ_in_nothing_but_sizes_or_tails_stay_apart() -> None:
    by_size = short_kernel_names(["void f<512, 1>(int)", "void f<128, 4>(int)"])
    assert list(by_size.values()) == ["f<1>", "f<4>"]
    by_tail = short_kernel_names(["gemm_tilesize8x8_stage3_x", "gemm_tilesize8x8_stage4_x"])
    assert list(by_tail.values()) == ["gemm_tilesize8x8_stage3_x", "gemm_tilesize8x8_stage4_x"]
    by_types = short_kernel_names(["void f<float>(int)", "void f<double>(int)"])
    assert len(set(by_types.values())) == 2


@pytest.mark.parametrize("run", ["halves", "neumf-training"])
def test_every_kernel_of_a_recording_has_a_short_name_of_its_own(run: str) -> None:
    rank = read_run(RECORDINGS / f"{run}.ledger").rank()
    work, texts = read_work(rank, None), names_of(rank)
    assert work is not None
    names = {texts[number] for number in work.name_id.tolist() if number >= 0}
    short = short_kernel_names(names)
    assert short.keys() == names
    assert len(set(short.values())) == len(names)
    assert max(map(len, short.values())) <= 70
    assert not any("at::native" in one or "anonymous" in one for one in short.values())


@given(st.lists(st.text("<>(),: _Zabv0123456789{}#", max_size=40), unique=True, max_size=8))
def test_any_names_stay_apart(names: list[str]) -> None:
    short = short_kernel_names(names)
    assert short.keys() == set(names)
    assert len(set(short.values())) == len(names)
