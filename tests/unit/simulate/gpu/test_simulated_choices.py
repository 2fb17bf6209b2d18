"""Which kernels a program takes on a simulated GPU, where PyTorch would choose others without one."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from present import present

pytest.importorskip("torch")
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.model.journal.journal import Action
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch
ENTRIES = 1 << 20
DROPOUT = inspect.signature(F.dropout).parameters
"""Those of torch itself, without a simulated GPU."""


class Calls(TorchDispatchMode):
    """Keeps the arguments of an operator's calls."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.arguments: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith(f"aten.{self.name}."):
            self.arguments.append(args)
        return func(*args, **(kwargs or {}))


def sizes_of(device: SimulatedDevice, work: Callable[[], object]) -> list[int]:
    """Return the bytes of each allocation of some work."""
    before = len(device.events)
    kept = work()
    assert kept is not None
    return [event[2] for event in device.events[before:] if event[0] == Action.ALLOC]


@pytest.mark.parametrize(
    ("p", "training", "inplace", "masks"),
    [(0.5, True, False, 1), (0.5, False, False, 0), (0.0, True, False, 0), (1.0, True, False, 0), (0.5, True, True, 0)],
)
def test_dropout_keeps_a_mask_of_bytes_only_where_it_is_fused(
    p: float, training: bool, inplace: bool, masks: int, device: SimulatedDevice
) -> None:
    data = torch.zeros(ENTRIES, device="cuda")
    made: list[torch.Tensor] = []
    with Calls("native_dropout") as calls:
        sizes = sizes_of(device, lambda: made.append(F.dropout(data, p, training, inplace)) or made)
    assert sizes.count(ENTRIES) == masks
    assert [rest for _, *rest in calls.arguments] == [[p, True]] * masks
    assert (made[0].dtype, made[0].shape) == (data.dtype, data.shape)


@pytest.mark.parametrize("train", [False, True])
def test_dropout_of_torch_itself_is_that_of_modules(train: bool, device: SimulatedDevice) -> None:
    data = torch.zeros(ENTRIES, device="cuda")
    assert torch.dropout(data, 0.5, train).shape == data.shape
    assert sizes_of(device, lambda: torch.dropout(data, 0.5, train)).count(ENTRIES) == train


@pytest.mark.parametrize("count", range(1, 7))
def test_no_process_is_started_to_load_data_however_that_was_asked_for(count: int, device: SimulatedDevice) -> None:
    words: tuple[Any, ...] = (TensorDataset(torch.arange(4)), 2, False, None, None, 3)
    more: dict[str, Any] = {"num_workers": 3} if count < 6 else {}
    loader = DataLoader(*words[:count], **more)
    assert loader.num_workers == 0


def test_a_parameter_is_made_of_nothing_of_data_and_of_simulated_data(device: SimulatedDevice) -> None:
    assert nn.Parameter().shape == (0,)
    plain = nn.Parameter(torch.zeros(3, 4), requires_grad=False)
    assert (type(plain.data), plain.shape, plain.requires_grad) == (FakeTensor, (3, 4), False)
    data = torch.zeros(5, device="cuda")
    assert sizes_of(device, lambda: nn.Parameter(data)) == []
    assert nn.Parameter(data).device.type == "cuda"


def test_dropout_has_the_defaults_of_torch(device: SimulatedDevice) -> None:
    found = inspect.signature(F.dropout).parameters
    assert {name: one.default for name, one in found.items()} == {name: one.default for name, one in DROPOUT.items()}


def test_dropout_of_cpu_tensors_is_left_to_torch(device: SimulatedDevice) -> None:
    assert sizes_of(device, lambda: F.dropout(torch.zeros(ENTRIES), 0.5)) == []


@pytest.mark.parametrize(
    ("kind", "words", "mode", "weights_each", "projected"),
    [
        (nn.RNN, {"nonlinearity": "relu"}, 0, 4, 0),
        (nn.RNN, {"bias": False}, 1, 2, 0),
        (nn.LSTM, {}, 2, 4, 0),
        (nn.LSTM, {"bias": False, "proj_size": 8}, 2, 3, 8),
        (nn.GRU, {"bidirectional": True}, 3, 4, 0),
        (nn.GRU, {"bias": False}, 3, 2, 0),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_cudnn_gets_the_weights_of_each_layer_and_its_shape(
    kind: Any,
    words: dict[str, Any],
    mode: int,
    weights_each: int,
    projected: int,
    packed: bool,
    device: SimulatedDevice,
) -> None:
    layer = kind(16, 32, 2, batch_first=True, dropout=0.25, **words).cuda().train(not packed)
    data: Any = torch.zeros(4, 7, 16, device="cuda")
    if packed:
        data = nn.utils.rnn.pack_padded_sequence(data, torch.tensor([7, 7, 3, 2]), batch_first=True)
    both = bool(words.get("bidirectional"))
    with Calls("_cudnn_rnn") as calls:
        made, state = layer(data)
    ((_, weights, stride, buffer, _, cell, *rest),) = calls.arguments
    assert (len(weights), stride, buffer) == (2 * weights_each * (1 + both), weights_each, None)
    assert rest[:4] == [mode, 32, projected, 2]
    assert rest[4:8] == [not packed, 0.25, not packed, both]
    assert list(rest[8]) == ([4, 4, 3, 2, 2, 2, 2] if packed else [])
    assert (cell is None) == (kind is not nn.LSTM)
    states = [state] if cell is None else list(state)
    assert [one.shape[-1] for one in states] == [projected or 32, 32][: len(states)]
    assert {one.shape[:2] for one in states} == {(2 * (1 + both), 4)}
    assert len(states) == (2 if kind is nn.LSTM else 1)
    assert (made.data if packed else made).shape[-1] == (projected or 32) * (1 + both)


@pytest.mark.parametrize("dtype", [torch.float32, torch.half])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_a_cell_is_one_kernel_after_two_products(
    kind: Any, bias: bool, dtype: torch.dtype, device: SimulatedDevice
) -> None:
    cell, gates = kind(16, 32, bias=bias).cuda(), 4 if kind is nn.LSTMCell else 3
    with (
        torch.autocast("cuda", dtype=dtype, enabled=dtype == torch.half),
        Calls("_thnn_fused_lstm_cell" if kind is nn.LSTMCell else "_thnn_fused_gru_cell") as fused,
    ):
        made = cell(torch.zeros(5, 16, device="cuda"))
    ((of_data, of_before, before, *biases),) = fused.arguments
    assert of_data.shape == of_before.shape == (5, 32 * gates)
    assert (before.shape, before.dtype, of_data.dtype) == ((5, 32), dtype, dtype)
    given = [one for one in biases if one is not None]
    assert [one.shape for one in given] == [(32 * gates,)] * (2 if bias else 0)
    assert {id(one) for one in given} <= {id(one) for one in cell.parameters()}
    assert [one.shape for one in (made if kind is nn.LSTMCell else (made,))] == [(5, 32)] * (
        gates - 2 if gates == 4 else 1
    )


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_of_the_cpu_is_left_to_torch(kind: Any, device: SimulatedDevice) -> None:
    made = kind(4, 6)(torch.zeros(5, 4))
    assert (made[0] if kind is nn.LSTMCell else made).shape == (5, 6)
    assert sizes_of(device, lambda: kind(4, 6)(torch.zeros(5, 4))) == []


def test_a_cell_multiplies_its_data_and_its_output_and_passes_its_state(device: SimulatedDevice) -> None:
    cell = nn.LSTMCell(4, 6, bias=False).cuda()
    data, output, state = (torch.zeros(5, size, device="cuda") for size in (4, 6, 6))
    with Calls("mm") as products, Calls("_thnn_fused_lstm_cell") as fused:
        made = cell(data, (output, state))
    assert [left is right for (left, _), right in zip(products.arguments, (data, output), strict=True)] == [True, True]
    assert fused.arguments[0][2] is state
    assert len(made) == 2


@pytest.mark.parametrize("total", [None, 9])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_a_packed_batch_is_padded_to_its_lengths(
    place: str, batch_first: bool, total: int | None, device: SimulatedDevice
) -> None:
    lengths = torch.tensor([7, 7, 3, 1])
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(7, 4, 5, device=place), lengths)
    with Calls("copy_") as copies:
        padded, found = nn.utils.rnn.pad_packed_sequence(packed, batch_first, total_length=total)
    assert (padded.device.type, found.tolist()) == (place, lengths.tolist())
    assert padded.shape == ((4, total or 7, 5) if batch_first else (total or 7, 4, 5))
    if place == "cuda":  # one copy for each number of sequences that are not at their end: 4, 3, 2
        assert [tuple(piece.shape) for piece, *_ in copies.arguments] == [(1, 4, 5), (2, 3, 5), (4, 2, 5)]


def test_weights_are_put_together_only_where_they_are_apart_and_on_the_card(device: SimulatedDevice) -> None:
    layer: Any = nn.LSTM(16, 32).cuda()
    assert sizes_of(device, lambda: (layer.flatten_parameters(), layer)) == []
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.clone()
    (flat,) = sizes_of(device, lambda: (layer.flatten_parameters(), layer))
    assert flat == 4 * sum(weight.numel() for weight in layer.parameters())
    layer.weight_ih_l0 = nn.Parameter(torch.zeros(128, 16))  # now some are on the CPU
    assert sizes_of(device, lambda: (layer.flatten_parameters(), layer)) == []
    elsewhere: Any = nn.LSTM(16, 32)
    assert sizes_of(device, lambda: (elsewhere.flatten_parameters(), elsewhere)) == []


@pytest.mark.parametrize(
    ("differentiable", "use_fused", "chosen"),
    [
        (False, False, (False, True)),
        (False, True, (True, False)),
        (True, False, (False, False)),
        (True, True, (False, False)),
    ],
)
def test_optimizers_are_foreach_unless_fused_or_differentiable(
    differentiable: bool, use_fused: bool, chosen: tuple[bool, bool], device: SimulatedDevice
) -> None:
    """PyTorch would not: it updates tensors of other types than its own one by one."""
    adam: Any = sys.modules["torch.optim.adam"]
    weights = [torch.zeros(4, device="cuda")]
    assert adam._default_to_fused_or_foreach(weights, differentiable, use_fused) == chosen


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("asked", "entry_bytes"), [(torch.float32, 4), (None, 2)])
def test_softmax_of_half_precision_converts_in_its_own_kernel(
    name: str, asked: torch.dtype | None, entry_bytes: int, device: SimulatedDevice
) -> None:
    data = torch.zeros(8, ENTRIES // 8, dtype=torch.half, device="cuda")
    assert sizes_of(device, lambda: getattr(torch, name)(data, -1, dtype=asked)) == [entry_bytes * ENTRIES]


@pytest.mark.parametrize(("foreach", "calls"), [(None, 1), (True, 1), (False, 0)])
def test_gradients_are_clipped_together_unless_that_is_forbidden(
    foreach: bool | None, calls: int, device: SimulatedDevice
) -> None:
    layer = nn.Linear(4, 2).cuda()
    layer(torch.zeros(3, 4, device="cuda")).sum().backward()
    with Calls("_foreach_norm") as seen:
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0, foreach=foreach)
    assert len(seen.arguments) == calls


def test_a_scaled_step_is_always_taken_and_has_the_optimizers_result(device: SimulatedDevice) -> None:
    class Told(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return 7.0

    layer = nn.Linear(4, 2).cuda()
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(layer(torch.zeros(3, 4, device="cuda")).sum()).backward()
    assert scaler.step(Told(layer.parameters(), 0.1)) == 7.0


def test_backward_is_followed_by_either_name_that_torch_has_for_it(device: SimulatedDevice) -> None:
    for module in (torch.autograd, torch.autograd.graph):
        seen: list[bool] = []
        weight = torch.ones(3, device="cuda", requires_grad=True)
        weight.register_hook(lambda _, seen=seen: seen.append(device.in_backward))
        made, gradient = weight.sum(), torch.ones((), device="cuda")
        module._engine_run_backward((made,), (gradient,), False, False, (), accumulate_grad=True)
        assert seen == [True]


def test_distributions_do_not_check_values_that_were_never_computed(device: SimulatedDevice) -> None:
    assert torch.distributions.Categorical(torch.zeros(4, 3, device="cuda")).sample().shape == (4,)


def test_gradients_move_with_their_parameters(device: SimulatedDevice) -> None:
    layer = nn.Linear(4, 2, bias=False)
    weight = layer.weight
    weight.grad = torch.zeros(2, 4)
    layer.cuda()
    assert (layer.weight is weight, weight.device.type, present(weight.grad).device.type) == (True, "cuda", "cuda")
    layer.half()
    assert (weight.dtype, present(weight.grad).dtype) == (torch.half, torch.half)
    layer.zero_grad()
    layer.cuda()
    assert weight.grad is None


def test_a_parameter_moves_in_place_unless_it_gets_or_loses_data(device: SimulatedDevice) -> None:
    layer = nn.Linear(4, 2)
    frozen = present(layer.bias).requires_grad_(False)
    layer.weight.grad = torch.zeros(2, 4)
    layer.to("meta")
    assert (layer.weight.device.type, present(layer.weight.grad).device.type) == ("meta", "meta")
    assert [one.requires_grad for one in layer.parameters()] == [True, False]
    assert layer.bias is not frozen
    layer.to_empty(device="cuda")
    assert {one.device.type for one in (*layer.parameters(), present(layer.weight.grad))} == {"cuda"}


def test_a_module_moves_with_its_buffers_and_parts(device: SimulatedDevice) -> None:
    outer: Any = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False))
    outer.register_buffer("none", None)
    before = list(outer.parameters())
    outer._apply(lambda tensor: tensor.to("cuda"), recurse=False)
    assert {one.device.type for one in outer.parameters()} == {"cpu"}
    outer.cuda()
    assert all(one is other for one, other in zip(outer.parameters(), before, strict=True))
    assert {one.device.type for one in (*outer.parameters(), *outer.buffers())} == {"cuda"}


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [("cuda", "cuda"), (torch.device("cuda", 0), "cuda"), ("cpu", "cpu"), ("meta", "meta"), (None, "cpu")],
)
def test_the_default_device_is_the_one_that_was_set(wanted: Any, kind: str, device: SimulatedDevice) -> None:
    torch.set_default_device("cpu" if kind == "cuda" else "cuda")
    torch.set_default_device(wanted)
    try:
        assert torch.get_default_device().type == torch.zeros(3).device.type == kind
        made = sizes_of(device, lambda: torch.zeros(ENTRIES))
        assert made == ([4 * ENTRIES] if kind == "cuda" else [])
    finally:
        torch.set_default_device(None)
    assert torch.get_default_device().type == "cpu"


def test_values_that_are_known_are_those_of_a_list(device: SimulatedDevice) -> None:
    with Calls("unbind") as parts:  # not one by one
        assert torch.arange(3).cuda().tolist() == [0, 1, 2]
    assert parts.arguments == []
    computed: Any = nn.Linear(4, 3).cuda()(torch.zeros(2, 4, device="cuda")).tolist()
    assert [[isinstance(value, float) for value in row] for row in computed] == [[True] * 3] * 2
    single: object = torch.tensor(7, device="cuda").tolist()
    assert single == 7


@pytest.mark.parametrize("fails", [False, True])
def test_backward_is_under_way_until_it_returns_or_fails(fails: bool, device: SimulatedDevice) -> None:
    weight = torch.ones(3, device="cuda", requires_grad=True)

    def hook(_: torch.Tensor) -> None:
        assert device.in_backward
        if fails:
            raise RuntimeError("of the program")

    weight.register_hook(hook)
    with contextlib.suppress(RuntimeError) if fails else contextlib.nullcontext():
        weight.sum().backward()
    assert not device.in_backward


def test_gradients_of_weights_converted_together_have_the_weights_types(device: SimulatedDevice) -> None:
    """Also where some weights have the type of autocast already."""
    layer = nn.LSTM(32, 128).cuda()
    layer.bias_hh_l0.data = layer.bias_hh_l0.data.half()
    count = sum(weight.numel() for weight in layer.parameters())
    with torch.autocast("cuda"):
        made: list[Any] = []
        sizes = sizes_of(device, lambda: made.append(layer(torch.zeros(5, 2, 32, device="cuda"))[0]) or made)
    assert 2 * count in sizes
    made[0].sum().backward()
    assert [present(one.grad).dtype for one in layer.parameters()] == [one.dtype for one in layer.parameters()]
    assert {one.dtype for one in layer.parameters()} == {torch.half, torch.float32}


def test_weights_of_autocasts_type_stay_where_they_are(device: SimulatedDevice) -> None:
    layer = nn.GRU(32, 128).cuda().half()
    data = torch.zeros(5, 2, 32, device="cuda")
    with torch.autocast("cuda", dtype=torch.half), Calls("_cudnn_rnn") as calls:
        layer(data)
    assert all(one is other for one, other in zip(calls.arguments[0][1], layer.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
def test_autocast_runs_recurrent_layers_in_float16_in_any_type(
    dtype: torch.dtype, given: torch.dtype, device: SimulatedDevice
) -> None:
    """Source: aten/src/ATen/cudnn/AutocastRNN.cpp, also for weights in bfloat16."""
    layer = nn.LSTM(32, 64).cuda().to(given)
    data = torch.zeros(5, 2, 32, device="cuda", dtype=given, requires_grad=True)
    with torch.autocast("cuda", dtype=dtype), Calls("_cudnn_rnn") as calls:
        output, states = layer(data)
    assert {one.dtype for one in (calls.arguments[0][0], *calls.arguments[0][1], output, *states)} == {torch.float16}
    output.sum().backward()
    assert data.grad is not None
    assert data.grad.dtype == given


@pytest.mark.parametrize(
    ("left", "right", "copied"),
    [
        (lambda: zeros(8, 16), lambda: zeros(16, 32), []),
        (lambda: zeros(16, 8).t(), lambda: zeros(32, 16).t(), []),
        (lambda: zeros(8, 64)[:, :16], lambda: zeros(16, 32), []),
        (lambda: zeros(1).expand(8, 16), lambda: zeros(16, 32), [512]),
        (lambda: zeros(8, 1).expand(8, 16), lambda: zeros(1).expand(16, 32), [512, 2048]),
        (lambda: zeros(8, 32)[:, ::2], lambda: zeros(16, 32), [512]),
        (lambda: zeros(8, 16).expand(4, 8, 16), lambda: zeros(4, 16, 32), []),
        (lambda: zeros(1).expand(4, 8, 16), lambda: zeros(4, 32, 16).transpose(1, 2), [2048]),
    ],
)
def test_cublas_needs_copies_of_matrices_without_rows_or_columns_in_one_piece(
    left: Any, right: Any, copied: list[int], device: SimulatedDevice
) -> None:
    """Source: prepare_matrix_for_cublas in aten/src/ATen/native/cuda/Blas.cpp."""
    one, other = left(), right()
    sizes_of(device, lambda: zeros(2, 2) @ zeros(2, 2))  # cuBLAS's workspace
    result_bytes = 4 * one.shape[:-1].numel() * other.shape[-1]
    assert sizes_of(device, lambda: torch.matmul(one, other)) == [result_bytes, *copied]


def zeros(*sizes: int) -> torch.Tensor:
    return torch.zeros(*sizes, device="cuda")


def test_autocast_leaves_recurrent_layers_in_float64_alone(device: SimulatedDevice) -> None:
    layer = nn.GRU(32, 64).cuda().double()
    with torch.autocast("cuda"), Calls("_cudnn_rnn") as calls:
        layer(torch.zeros(5, 2, 32, device="cuda", dtype=torch.float64))
    assert calls.arguments[0][0].dtype == torch.float64
    assert all(one is other for one, other in zip(calls.arguments[0][1], layer.parameters(), strict=True))


def test_half_precision_of_the_cpu_is_left_to_torch(device: SimulatedDevice) -> None:
    data = torch.zeros(2, 3, dtype=torch.half)
    assert sizes_of(device, lambda: F.softmax(data, -1, dtype=torch.float32)) == []
    assert F.softmax(data.cuda(), -1, dtype=torch.float32).dtype == torch.float32
    assert F.softmax(data.cuda(), -1, dtype=torch.float64).dtype == torch.float64


def test_what_is_saved_is_said_and_not_written(tmp_path: Path) -> None:
    said: list[str] = []
    with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), said.append):
        torch.save({"a": 1}, tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()
    assert any(one.startswith("torch.save: ") for one in said)


@pytest.mark.parametrize("dtype", [None, torch.half, torch.float32])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_weights_of_a_recurrent_layer_are_converted_together_under_autocast_only(
    kind: Any, dtype: torch.dtype | None, device: SimulatedDevice
) -> None:
    """They need one piece of memory. Weights that have the type already stay where they are."""
    layer = kind(32, 128).cuda()
    data = torch.zeros(5, 2, 32, device="cuda")
    count = sum(weight.numel() for weight in layer.parameters())
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        sizes = sizes_of(device, lambda: layer(data))
    assert (2 * count in sizes) is (dtype == torch.half)
    assert 4 * count not in sizes


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_the_cpu_are_left_to_torch(kind: Any, device: SimulatedDevice) -> None:
    layer = kind(4, 6)
    assert sizes_of(device, lambda: layer(torch.zeros(5, 2, 4))) == []
    assert layer(torch.zeros(5, 2, 4))[0].shape == (5, 2, 6)


@pytest.mark.parametrize("way", ["to", "cuda", "device"])
def test_a_lazy_module_has_its_parameters_on_the_gpu_from_its_first_call(way: str, device: SimulatedDevice) -> None:
    model = nn.Sequential(nn.LazyLinear(64, device="cuda" if way == "device" else None), nn.LazyBatchNorm1d())
    if way == "to":
        model.to("cuda")
    elif way == "cuda":
        model.cuda()
    else:
        model[1].to("cuda")
    data = torch.zeros(8, 32, device="cuda")
    made = sizes_of(device, lambda: (model(data), model))
    assert {4 * 64 * 32, 4 * 64} <= set(made)
    assert [parameter.device.type for parameter in model.parameters()] == ["cuda"] * 4
    assert [buffer.device.type for buffer in model.buffers()] == ["cuda"] * 3
    model(data).sum().backward()


def test_a_lazy_module_on_the_cpu_stays_there(device: SimulatedDevice) -> None:
    model = nn.LazyLinear(64)
    assert model(torch.zeros(8, 32)).device.type == "cpu"
    assert sizes_of(device, lambda: model) == []


def test_functions_with_a_choice_keep_the_names_of_their_arguments(device: SimulatedDevice) -> None:
    scores = torch.randn(5, 2, 4, device="cuda").log_softmax(-1)
    targets = torch.ones(2, 3, dtype=torch.long, device="cuda")
    lengths: dict[str, Any] = {"input_lengths": (5, 5), "target_lengths": (3, 3)}
    assert torch.ctc_loss(log_probs=scores, targets=targets, reduction=0, **lengths).shape == (2,)
    assert torch.group_norm(input=torch.randn(2, 4, 3, device="cuda"), num_groups=2).shape == (2, 4, 3)


@pytest.mark.usefixtures("device")
def test_a_library_that_asks_for_fake_tensors_finds_none() -> None:
    """As transformers does, which builds masks differently if it is traced."""
    data = torch.ones(2, device="cuda")
    assert not isinstance(data, torch._subclasses.FakeTensor)
    assert isinstance(data, FakeTensor)


def test_the_class_of_fake_tensors_is_restored() -> None:
    assert torch._subclasses.FakeTensor is FakeTensor
