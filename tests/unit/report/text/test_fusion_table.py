"""The modules of a compiled kernel fit into a column."""

from __future__ import annotations

import pytest

from gpuledger.analyze.step.fusions import FusedKernel
from gpuledger.report.text.fusion_table import module_names


@pytest.mark.parametrize(
    ("modules", "is_shared", "names"),
    [
        (("h.0.attn.q", "h.1.attn.q", "h.2.attn.q"), False, ["3 × h.*.attn.q"]),
        (("models[0].fc", "models[1].fc"), False, ["2 × models[*].fc"]),
        (("moe.experts.0", "moe.experts.3"), False, ["2 × moe.experts.*"]),
        (("net.2", "net.1"), True, ["net.2", "net.1"]),  # a dropout and an activation in one kernel
        (("h.0.mlp.act", "h.0.mlp", "h.1.mlp.act", "h.1.mlp"), True, ["2 × h.*.mlp.act", "2 × h.*.mlp"]),
        (("2", "1", ""), False, ["2", "1", "(none)"]),
        (("h.7.mlp",), False, ["h.7.mlp"]),
    ],
)
def test_equal_modules_of_several_layers_are_combined(
    modules: tuple[str, ...], is_shared: bool, names: list[str]
) -> None:
    kernel = FusedKernel("extern_kernels.mm", modules, (), (), 0, 1.0, is_shared)
    assert module_names(kernel, "(none)") == names
