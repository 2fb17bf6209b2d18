from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from folders import DATA

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from op_models import conv_net
from torch import nn

from gpuledger import ops
from gpuledger.errors import InputError, UsageError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import read_parquet
from gpuledger.ops.workloads.capture import Capture
from gpuledger.ops.workloads.captures import (
    CPU,
    CapturedDevice,
    CaptureRequest,
    asked_for,
    capture_model,
    capture_step,
    device_named,
)
from gpuledger.ops.workloads.models import parse_model
from gpuledger.ops.workloads.rebuild import Call, rebuild
from gpuledger.ops.workloads.reuse import ReuseMeter
from gpuledger.ops.workloads.steps import parse_inputs
from gpuledger.ops.workloads.workload import Workload, from_json, read_workload, to_json
from gpuledger.ops.workloads.workload_spec import WorkloadSpec

pytestmark = pytest.mark.torch
SIZES = {"conv_net": "4x3x16x16", "language": "4x12:int64", "recurrent": "4x7:int64"}
CASES = [(name, gpu) for name in SIZES for gpu in (CPU, "h200")]


def captured(name: str, gpu: str, mode: str = "training") -> Workload:
    model = parse_model(f"op_models:{name}")
    return capture_model(CaptureRequest(model, mode, inputs=parse_inputs(SIZES[name]), optimizer="adamw"), gpu)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def workloads() -> dict[tuple[str, str], Workload]:
    return {case: captured(*case) for case in CASES}


def names(workload: Workload) -> Counter[str]:
    counts: Counter[str] = Counter()
    for use in workload.uses:
        counts[use.key.name] += use.count
    return counts


def test_functional_backward_and_optimizer_operators_are_in_it(workloads: dict[tuple[str, str], Workload]) -> None:
    found = names(workloads["conv_net", CPU])
    assert found["convolution"] == found["convolution_backward"] == 2
    assert found["cat"] == found["silu"] == found["silu_backward"] == 1
    assert found["nll_loss_forward"] == found["nll_loss_backward"] == 1
    assert found["addcdiv_"] == len(list(conv_net().parameters()))


@pytest.mark.parametrize("name", SIZES)
def test_a_virtual_card_sees_the_products_that_the_cpu_sees(
    workloads: dict[tuple[str, str], Workload], name: str
) -> None:
    on_cpu, on_card = (names(workloads[name, gpu]) for gpu in (CPU, "h200"))
    for operator in ("convolution", "convolution_backward", "addmm", "embedding", "native_layer_norm", "cat"):
        assert on_cpu[operator] == on_card[operator], operator


def test_each_distinct_call_is_there_once(workloads: dict[tuple[str, str], Workload]) -> None:
    for workload in workloads.values():
        digests = [use.key.digest for use in workload.uses]
        assert len(set(digests)) == len(digests)
        assert all(sum(count for _, count in use.modules) == use.count for use in workload.uses)


def test_modules_are_named_in_forward_and_backward(workloads: dict[tuple[str, str], Workload]) -> None:
    for gpu in (CPU, "h200"):
        of = {use.key.name: dict(use.modules) for use in workloads["conv_net", gpu].uses}
        backward = {
            module for use in workloads["conv_net", gpu].uses if use.key.name == "convolution_backward"
            for module, _ in use.modules
        }  # fmt: skip
        assert of["silu"] == {"": 1}
        assert backward == {"stem", "depthwise"}


def test_layers_hold_the_operators_inside_them(workloads: dict[tuple[str, str], Workload]) -> None:
    workload = workloads["conv_net", CPU]
    layers = {layer.class_name: layer for layer in workload.layers}
    operators = {use.key.digest: use.key.name for use in workload.uses}
    stem = next(layer for layer in workload.layers if "bias=False" in layer.extra_repr)
    assert [operators[digest] for digest, _ in stem.uses] == ["convolution"]
    assert stem.inputs[0]["shape"] == [4, 3, 16, 16]
    assert stem.parameters == (("weight", (8, 3, 3, 3)),)
    assert "ConvNet" not in layers
    assert {"Conv2d", "BatchNorm2d", "MaxPool2d", "Linear"} <= set(layers)


def test_alike_layers_are_counted_together() -> None:
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(5)))
    capture = Capture(lambda _: True, CPU)
    with capture, torch.no_grad():
        model(torch.ones(2, 6))
        capture.mark_step()
    assert capture.finished is not None
    (layer,) = capture.finished.layers
    (use,) = capture.finished.uses
    assert (layer.count, use.count, len(use.modules)) == (5, 5, 5)


def test_inference_mode_hides_no_operator() -> None:
    model = nn.Linear(6, 6)
    found = []
    for context in (torch.no_grad, torch.inference_mode):
        capture = Capture(lambda _: True, CPU)
        with capture, context():
            model(torch.ones(2, 6))
            capture.mark_step()
        assert capture.finished is not None
        found.append([use.key.operator for use in capture.finished.uses if use.key.name != "ones"])
    assert found[0] == found[1] == ["aten.addmm.default"]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_record_can_be_rebuilt_and_is_the_same_call(
    workloads: dict[tuple[str, str], Workload], case: tuple[str, str]
) -> None:
    uses = workloads[case].uses
    assert len(uses) > 20
    with device_named(case[1], lambda _: None) as place:
        calls = [rebuild(use.key, place.device) for use in uses]
        found = seen_keys(calls, place)
    for key, use in zip(found, uses, strict=True):
        assert (key.operator, key.inputs) == (use.key.operator, use.key.inputs)


def seen_keys(calls: list[Call], place: CapturedDevice) -> list[OperatorKey]:
    """Return the key that capture gives to each rebuilt call."""
    capture = Capture(place.holds, place.device)
    with capture:
        for call in calls:
            call()
    keys = {use.key.digest: use.key for use in capture.tally.uses}
    return [keys[digest] for digest in capture.tally.order]


def test_rebuilt_inputs_are_never_zeros_and_indices_are_in_range(
    workloads: dict[tuple[str, str], Workload],
) -> None:
    for use in (use for name in SIZES for use in workloads[name, CPU].uses):
        for tensor in (value for value in rebuild(use.key).args if isinstance(value, torch.Tensor)):
            if tensor.is_floating_point() and tensor.numel() > 1:
                assert tensor.count_nonzero() > tensor.numel() / 2, use.key.text
    key = next(use.key for use in workloads["language", CPU].uses if use.key.name == "embedding")
    weight, indices = rebuild(key).args[:2]
    assert 0 <= indices.min() <= indices.max() < len(weight)
    assert len(indices.unique()) > 5


def test_the_same_key_gives_the_same_values() -> None:
    key = OperatorKey("aten.relu.default", ({"shape": [50], "dtype": "float32", "stride": [1]},))
    assert torch.equal(rebuild(key).args[0], rebuild(key).args[0])


def test_sparsity_strides_and_one_tensor_twice() -> None:
    sparse = {"shape": [400, 50], "dtype": "float32", "stride": [1, 400], "sparsity": 0.9}
    left, right = rebuild(OperatorKey("aten.mul.Tensor", (sparse, {**sparse, "same": 0}))).args
    assert left is right
    assert left.stride() == (1, 400)
    assert left.count_nonzero() == pytest.approx(2000, rel=0.2)
    expanded = {"shape": [3, 4], "dtype": "int64", "stride": [0, 1]}
    (tensor,) = rebuild(OperatorKey("aten.neg.default", (expanded,))).args
    assert (tensor[0] == tensor[1]).all()


@pytest.mark.parametrize(
    ("operator", "inputs", "words"),
    [
        ("aten.no_such.default", (), "no such operator"),
        ("nowhere.at_all.default", (), "only operators of aten"),
        ("aten.relu.default", ({"shape": [2], "dtype": "float32", "layout": "sparse_coo"},), "sparse_coo"),
        ("aten.relu.default", ({"object": "ScriptObject"},), "ScriptObject"),
    ],
)
def test_what_cannot_be_made_again_is_said(operator: str, inputs: tuple[object, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        rebuild(OperatorKey(operator, inputs))


def test_a_workload_survives_its_file(workloads: dict[tuple[str, str], Workload], tmp_path: Path) -> None:
    for number, workload in enumerate(workloads.values()):
        workload.write(tmp_path / f"{number}.json")
        assert read_workload(tmp_path / f"{number}.json") == workload == ops.read_workload(f"{tmp_path}/{number}.json")
        assert from_json(to_json(workload)) == workload


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[1]", "not a workload"),
        ('{"gpuledger_workload": 99}', "version 99, but this gpuledger reads up to version 1"),
        ('{"gpuledger_workload": 1, "name": "x", "mode": "sleeping"}', "damaged workload"),
        ('{"gpuledger_workload": 1, "name": "x", "mode": "training"}', "damaged workload"),
        ('{"gpuledger_workload":1,"name":"x","mode":"training","layers":[],"settings":{},"uses":[{"key":3,"modules":[],'
         '"reuse_bytes":null,"count":1}]}', "operator key"),
    ],
)  # fmt: skip
def test_a_damaged_workload_is_refused_with_its_name(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_workload(tmp_path / "w.json")
    assert "w.json" in caught.value.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(json_values, max_size=4), st.text())
def test_a_key_is_its_json(inputs: list[object], operator: str) -> None:
    key = OperatorKey(operator, tuple(inputs))
    again = OperatorKey.from_json(json.loads(json.dumps(key.to_json())))
    assert again == key
    assert (again.digest, hash(again)) == (key.digest, hash(key))
    assert OperatorKey(operator, (*inputs, 1)) != key


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100)), min_size=1, max_size=30))
def test_reuse_distance_is_the_bytes_touched_between(touches: list[tuple[int, int]]) -> None:
    meter = ReuseMeter()
    for number, (storage, size_bytes) in enumerate(touches):
        found = meter.meet([(storage, size_bytes)], [])
        before = [index for index in range(number) if touches[index][0] == storage]
        between = sum(size for _, size in touches[before[-1] + 1 : number]) if before else None
        assert found == between


def test_weights_are_as_far_as_the_whole_step_and_activations_are_near() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    data = torch.ones(1, 64)
    capture = Capture(lambda _: True, CPU)
    with capture, torch.no_grad():
        for _ in range(2):
            model(data)
            capture.mark_step()
    assert capture.finished is not None
    (use,) = capture.finished.uses
    assert use.reuse_bytes is not None
    assert use.reuse_bytes >= 64 * 64 * 4


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (WorkloadSpec("torchvision:"), "not a model's name"),
        (WorkloadSpec(":x"), "not a model's name"),
        (WorkloadSpec("op_models:conv_net?x"), "expected option=value"),
        (WorkloadSpec("op_models:conv_net", inputs="4x3xx"), "not an input size"),
        (WorkloadSpec("op_models:conv_net", inputs="4x0"), "sizes must be 1 or more"),
        (WorkloadSpec("op_models:conv_net", inputs="4x3:float99"), "unsupported dtype float99"),
        (WorkloadSpec("op_models:conv_net", optimizer="lion"), "--optimizer lion"),
        (WorkloadSpec("op_models:conv_net", autocast="int8"), "--autocast int8"),
        (WorkloadSpec("op_models:conv_nat"), "no model conv_nat"),
        (WorkloadSpec("no_such_module_at_all:x"), "No module named"),
        (WorkloadSpec("op_models:SIZES_OF_NOTHING"), "no model SIZES"),
        (WorkloadSpec("json:dumps?obj=1"), "expected a torch.nn.Module"),
        (WorkloadSpec("op_models:conv_net", weights="DEFAULT"), "a factory of your own"),
    ],
)
def test_a_wrong_model_is_named(wanted: WorkloadSpec, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        capture_model(asked_for(wanted), CPU)


@pytest.mark.parametrize("gpu", [CPU, "h200"])
def test_autocast_is_entered_anew_in_each_step_and_left_before_backward(gpu: str) -> None:
    asked = asked_for(WorkloadSpec("op_models:conv_net", "training", SIZES["conv_net"], autocast="bfloat16"))
    uses = capture_model(asked, gpu).uses
    plain = capture_model(replace(asked, mode="inference", autocast=None), gpu).uses
    weights = {tuple(use.key.arguments[1]["shape"]) for use in plain if use.key.name.startswith("conv")}
    cast = {tuple(next(use.key.tensors())["shape"]) for use in uses if use.key.name == "_to_copy"}
    assert weights
    assert weights <= cast  # a copy that was kept from the step before would not be made again
    backward = [use.key for use in uses if use.key.name == "convolution_backward"]
    assert backward
    assert {key.flags["autocast"] for key in backward} == {None}
    assert {tensor["dtype"] for key in backward for tensor in key.tensors()} == {"bfloat16"}


def test_inputs_that_do_not_fit_are_said_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match=r"op_models:conv_net: RuntimeError: .*channels"):
        capture_model(asked_for(WorkloadSpec("op_models:conv_net", inputs="4x5x16x16")), CPU)
    logging.getLogger("torch._subclasses.fake_tensor").addHandler(caplog.handler)  # torch's own let none through
    with pytest.raises(InputError, match=r"torch.nn:Linear.*: RuntimeError: .*reduction dim"):
        capture_model(asked_for(WorkloadSpec("torch.nn:Linear?in_features=4&out_features=2", inputs="3x5")), "h200")
    logging.getLogger("torch._subclasses.fake_tensor").removeHandler(caplog.handler)
    assert caplog.records == []
    with pytest.raises(InputError, match="no parameters to train"):
        capture_model(asked_for(WorkloadSpec("torch.nn:Identity", "training", inputs="4x3")), CPU)


@pytest.mark.parametrize("name", ["nonzero", "masked_select", "unique", "repeat_interleave", "multinomial"])
def test_operators_whose_result_depends_on_data_are_captured_and_rebuilt(name: str) -> None:
    data = torch.tensor([3.0, 1.0, 0.0, 2.0])
    steps = {
        "nonzero": lambda: data.nonzero(),
        "masked_select": lambda: data.masked_select(data > 1),
        "unique": lambda: data.unique(),
        "repeat_interleave": lambda: torch.repeat_interleave(data, torch.tensor([1, 0, 3, 2])),
        "multinomial": lambda: data.multinomial(2),
    }
    found = ops.capture(steps[name], device=CPU)
    assert any(name in use.key.name for use in found.uses)
    for use in found.uses:
        ops.rebuild(use.key)()


def test_a_step_of_ones_own_is_captured() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    trained = ops.capture(train, name="mine", device=CPU)
    assert (trained.name, trained.mode) == ("mine", "training")
    assert {"addmm", "mm", "add_"} <= set(names(trained))
    with torch.no_grad():
        looked = ops.capture(lambda: model(torch.ones(3, 4)), device=CPU)
    assert (looked.mode, names(looked)["addmm"]) == ("inference", 1)
    assert ops.rebuild(next(use.key for use in looked.uses if use.key.name == "addmm"))().shape == (3, 2)
    with pytest.raises(InputError, match="did not use cpu"):
        ops.capture(lambda: None, device=CPU)


def test_options_reach_the_factory() -> None:
    model = parse_model("torch.nn:Linear?in_features=3&out_features=7")
    assert dict(model.options) == {"in_features": 3, "out_features": 7}
    found = capture_model(CaptureRequest(model, inputs=parse_inputs("2x3")), CPU)
    assert found.layers[0].outputs[0]["shape"] == [2, 7]


@pytest.mark.parametrize("count", [2, 3])
def test_one_tensor_given_again_is_told_from_one_that_is_alike(count: int) -> None:
    tensor = torch.randn(4, 4)

    def again() -> None:
        torch.stack([tensor] * count)

    def alike() -> None:
        torch.stack([tensor, *(torch.ones(4, 4) for _ in range(count - 1))])

    for step, distinct in ((again, 1), (alike, count)):
        workload = ops.capture(step, name="mine", device="cpu")
        (key,) = (use.key for use in workload.uses if use.key.name == "stack")
        (tensors,) = rebuild(key).args[:1]
        assert len({id(made) for made in tensors}) == distinct


def test_a_virtual_cards_batch_norms_are_those_of_the_measured_card() -> None:
    contents = read_parquet(DATA / "h200" / "operator_database.parquet", is_ours=True)
    with device_named("h200", lambda _sentence: None) as place:
        model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)).to("cuda")
        x = torch.randn(32, 64, 56, 56, device="cuda")
        tally = capture_step(lambda: model(x).square().mean().backward(), place)
        half = capture_step(lambda: model.bfloat16()(x.bfloat16()).square().mean().backward(), place)
    norms = {use.key.name: use.key.digest for use in tally.uses if "batch_norm" in use.key.name}
    assert set(norms) == {"cudnn_batch_norm", "cudnn_batch_norm_backward"}
    assert set(norms.values()) <= set(contents.keys)
    assert {use.key.name for use in half.uses if "batch_norm" in use.key.name} == {
        "native_batch_norm",
        "native_batch_norm_backward",
    }


def test_a_compiled_step_is_refused() -> None:
    """A dispatcher sees what a compiled program runs in place of its operators."""
    model = nn.Linear(4, 4)
    model.compile()
    with pytest.raises(InputError, match=r"torch\.compile") as caught:
        ops.capture(lambda: model(torch.ones(1, 4)), device="cpu")
    assert caught.value.hint is not None
    assert "TORCHDYNAMO_DISABLE=1" in caught.value.hint
