"""Backward of nodes that were created before the profiled step, as that of a GAN's generator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from traced import ENGINE, MAIN, NODE, Trace

from gpuledger.analyze.posting.host_events import FEWEST_NODES
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import LINE_RANGE, MODULE_RANGE, PHASE_RANGE

LAYERS = ("convolution", "cudnn_batch_norm", "relu_", "_to_copy", "addmm", "Swish", "tanh", "view", "mean", "mul")
NODES = ("Convolution", "CudnnBatchNorm", "Relu", "ToCopy", "Addmm", "Swish", "Tanh", "View", "Mean", "Mul")
LATER = 50
"""Number of nodes that a step creates."""


def gan(layers: Sequence[str] = LAYERS, nodes: Sequence[str] = NODES, count: int = len(NODES)) -> Trace:
    """Return a step that updates the generator, module 1, and then calls it for the next update, at line 4."""
    trace = Trace()
    trace.part.stacks = [[("train.py", number, "step")] for number in range(6)]
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 0, 400)
    for place in reversed(range(count)):
        start = 10 + 20 * (count - place)
        name = f"{NODE}{nodes[place]}Backward{'' if nodes[place] == 'Swish' else 0}"
        trace.host(name, start, start + 15, sequence=1 + place, lane=ENGINE, made_by=MAIN)
        launch = trace.host("aten::mul", start + 1, start + 10, lane=ENGINE)
        trace.device("kernel of backward", start + 1000, start + 1010, launch)
    trace.host(f"{MODULE_RANGE}1", 500, 900)
    for place, layer in enumerate(layers):
        start = 510 + 20 * place
        trace.host(f"{LINE_RANGE}4", start, start + 15)
        name = layer if layer == "Swish" else f"aten::{layer}"
        launch = trace.host(name, start + 1, start + 10, sequence=1 + LATER + place)
        trace.device("kernel of forward", start + 1000, start + 1010, launch)
    return trace


def test_they_have_the_module_and_the_line_of_their_equivalents_one_step_later() -> None:
    spans = gan().owned()
    assert spans.module_id.tolist() == [1] * 20
    assert spans.phase.tolist() == [int(Phase.BACKWARD)] * 10 + [int(Phase.FORWARD)] * 10
    assert spans.stack_id.tolist() == [4] * 20


@pytest.mark.parametrize(
    ("layers", "count"),
    [
        (tuple(reversed(LAYERS)), 10),  # the operators of the next step are in another order
        ((*LAYERS[:4], *["sub"] * 6), 10),
        (LAYERS, FEWEST_NODES - 1),  # too few to compare
        ((), 10),
    ],
    ids=["order", "names", "few", "none"],
)
def test_without_equivalents_their_module_is_unknown(layers: Sequence[str], count: int) -> None:
    spans = gan(layers, count=count).owned()
    assert spans.module_id.tolist()[:count] == [-1] * count
    assert 4 not in spans.stack_id.tolist()[:count]


def test_nodes_of_operators_in_the_profile_keep_their_modules() -> None:
    trace = gan()
    trace.host(f"{MODULE_RANGE}2", 910, 930)
    trace.host("aten::relu", 912, 920, sequence=71)
    trace.host(f"{NODE}ReluBackward0", 950, 960, sequence=71, lane=ENGINE, made_by=MAIN)
    trace.device("kernel", 3000, 3010, trace.host("aten::threshold_backward", 951, 959, lane=ENGINE))
    assert trace.owned().module_id.tolist() == [1] * 20 + [2]
