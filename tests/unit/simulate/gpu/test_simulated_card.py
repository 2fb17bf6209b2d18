"""What a program finds on a simulated GPU, and that nothing of it is left afterwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from present import present

pytest.importorskip("torch")
import torch
from simulated_gpu import SAID
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.model.bounds import LARGEST_REQUEST_BYTES
from gpuledger.model.journal.journal import Action
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.dispatch import NotModelledError

pytestmark = pytest.mark.torch


def test_everything_is_as_before_afterwards() -> None:
    names = ("is_available", "device_count", "memory_allocated", "Stream", "manual_seed")
    before = [getattr(torch.cuda, name) for name in names]
    parameter, apply, save = nn.Parameter.__new__, nn.Module._apply, torch.save
    with in_place(SimulatedDevice(find_card("t4"), CachingAllocator()), SAID.append):
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_name() == "NVIDIA T4"
    assert [getattr(torch.cuda, name) for name in names] == before
    assert (nn.Parameter.__new__, nn.Module._apply, torch.save) == (parameter, apply, save)
    assert type(nn.Linear(2, 2).weight) is nn.Parameter
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.softmax(torch.randn(2, 2).bfloat16(), 0).dtype == torch.bfloat16


def test_a_profiler_of_the_program_warns_of_nothing(device: SimulatedDevice, capfd: pytest.CaptureFixture[str]) -> None:
    """It would record a CUDA event for each operator, and write a stack of C++ for each that fails."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        torch.ones(2, device="cuda").add(1)
    assert "aten::add" in {event.key for event in profiler.key_averages()}
    assert "CUDA event" not in capfd.readouterr().err


def test_a_card_is_there(device: SimulatedDevice) -> None:
    assert torch.cuda.device_count() == 1
    assert f"{device.card.available_bytes / 2**30:.2f}" == "139.80"  # as CUDA says on an H200, not 140.40 as NVML
    assert torch.cuda.get_device_properties(0).total_memory == device.card.available_bytes
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total == device.card.available_bytes
    torch.cuda.manual_seed_all(1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        made = torch.empty(1 << 20, device="cuda")
    made.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 4 << 20
    del made
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_a_script_that_asks_which_gpu_it_has_is_named(device: SimulatedDevice) -> None:
    assert not SAID
    assert torch.cuda.is_available()
    assert not SAID
    assert torch.cuda.get_device_name() == device.card.name
    assert torch.cuda.mem_get_info()[1] == device.card.available_bytes
    assert [sentence.partition(" returned")[0].rpartition(" ")[2] for sentence in SAID] == [
        "torch.cuda.get_device_name",
        "torch.cuda.mem_get_info",
    ]
    assert all(sentence.startswith("test_simulated_card.py:") for sentence in SAID)


def test_a_limit_that_the_program_sets_is_told(device: SimulatedDevice) -> None:
    torch.cuda.set_per_process_memory_fraction(8 * 2**30 / device.card.available_bytes)
    (said,) = SAID
    assert said.startswith("test_simulated_card.py:")
    assert "set_per_process_memory_fraction limits the program to 8.0 GiB" in said
    assert torch.cuda.get_per_process_memory_fraction() == device.limit_frac < 0.06


def test_tensors_say_where_they_are(device: SimulatedDevice) -> None:
    on_cpu = torch.randn(4, 4)
    on_card = on_cpu.to("cuda")
    assert on_card.device == torch.device("cuda", 0)
    assert on_card.is_cuda
    assert not on_cpu.is_cuda
    assert (on_card @ on_card).device.type == "cuda"
    assert on_card.cpu().device.type == "cpu"
    assert torch.zeros(3, device=on_card.device).is_cuda
    assert torch.tensor([1, 2], device="cuda").is_cuda
    assert torch.zeros_like(on_card).is_cuda
    assert on_card.to("cuda") is on_card
    assert on_card.to(torch.float16).is_cuda
    assert float(on_cpu.sum()) == pytest.approx(float(on_cpu.numpy().sum()), rel=1e-4)


def test_the_card_as_the_default_device(device: SimulatedDevice) -> None:
    torch.set_default_device("cuda")
    assert torch.get_default_device() == torch.device("cuda", 0)
    assert torch.tensor([1.0]).is_cuda
    assert nn.Linear(2, 2)(torch.randn(3, 2)).is_cuda
    assert not torch.zeros(2, device="cpu").is_cuda
    torch.set_default_device(None)
    assert not torch.zeros(2).is_cuda
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda


@pytest.mark.parametrize("place", ["cuda", "cuda:0", torch.device("cuda")])
def test_a_model_moves_to_a_device_given_by_name(device: SimulatedDevice, place: str | torch.device) -> None:
    keywords: dict[str, Any] = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    layer = nn.Conv2d(64, 64, 3).to(device=place, **keywords)
    assert layer.weight.is_cuda
    assert torch.cuda.memory_allocated() == layer.weight.nbytes + 512  # bytes of the bias are rounded up
    assert nn.Linear(4, 4, device="cuda").to(device="cpu").weight.device.type == "cpu"


def test_a_model_moves_and_keeps_its_parameters(device: SimulatedDevice) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    tied = nn.Linear(8, 8)
    linear = model[0]
    assert isinstance(linear, nn.Linear)
    tied.weight = linear.weight
    optimizer = torch.optim.AdamW(model.parameters())
    before = [id(parameter) for parameter in model.parameters()]
    model.cuda()
    assert [id(parameter) for parameter in model.parameters()] == before
    assert tied.weight is linear.weight
    assert all(parameter.is_cuda for parameter in model.parameters())
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    state = optimizer.state[linear.weight]
    assert state["exp_avg"].is_cuda
    assert copy.deepcopy(model)[0].weight.is_cuda


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_has_the_lists_of_cuda(device: SimulatedDevice, dtype: torch.dtype) -> None:
    layer, data = nn.Linear(16, 16).cuda(), torch.randn(4, 16, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        assert torch.is_autocast_enabled()
        made = layer(data)
        assert made.dtype == dtype
        assert made.softmax(-1).dtype == torch.float32
        assert nn.functional.layer_norm(made, (16,)).dtype == torch.float32
        assert nn.functional.cross_entropy(made, torch.zeros(4, dtype=torch.long, device="cuda")).dtype == torch.float32
        assert nn.functional.gelu(made).dtype == dtype
    assert layer(data).dtype == torch.float32


def test_autocast_leaves_alone_what_an_older_torch_does_not_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11 has no rms_norm in the list of CUDA, so a tensor in half precision is normalized as it is."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    monkeypatch.setattr(
        torch._C,
        "_dispatch_has_kernel_for_dispatch_key",
        lambda name, key: has_kernel(name, key) and (name, key) != ("aten::rms_norm", "AutocastCUDA"),
    )
    with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), SAID.append):
        data = torch.ones(4, 8, device="cuda", dtype=torch.bfloat16)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert nn.functional.rms_norm(data, (8,), torch.ones(8, device="cuda").bfloat16()).dtype == torch.bfloat16
            assert nn.functional.layer_norm(data, (8,)).dtype == torch.float32


def test_a_mixed_precision_step_with_everything(device: SimulatedDevice) -> None:
    first = nn.Linear(32, 64)
    model = nn.Sequential(first, nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            hidden = checkpoint(model, torch.randn(8, 32, device="cuda", requires_grad=True), use_reentrant=False)
            loss = hidden.float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        assert f"{loss.item():.2f} {norm:.2f}"
    assert optimizer.state[first.weight]["exp_avg"].is_cuda
    assert any(".item() returned a placeholder" in sentence for sentence in SAID)


def test_dropout_keeps_a_mask_of_one_byte_an_entry(device: SimulatedDevice) -> None:
    data = torch.randn(1 << 20, device="cuda")
    before = torch.cuda.memory_allocated()
    dropped = nn.functional.dropout(data.requires_grad_(), 0.5)
    assert torch.cuda.memory_allocated() - before == (4 << 20) + (1 << 20)
    del dropped


def test_a_fresh_gradient_is_kept_and_sums_go_in_place(device: SimulatedDevice) -> None:
    """A leaf takes its gradient over; two branches that meet add into the first, so no third piece is needed."""
    data = torch.zeros(1 << 20, device="cuda", requires_grad=True)
    (data * 2 + data * 3).sum().backward()
    assert data.grad is not None
    assert torch.cuda.memory_allocated() == 2 * (4 << 20)
    assert torch.cuda.max_memory_allocated() <= 6 * (4 << 20)


def test_a_program_can_reset_the_peaks_and_the_estimate_keeps_its_own(device: SimulatedDevice) -> None:
    large = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    del large
    kept = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.max_memory_allocated() == 64 << 20
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == len(kept)
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == len(kept)
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved() >= 64 << 20
    more = torch.zeros(2 << 20, dtype=torch.uint8, device="cuda")
    del more
    assert torch.cuda.max_memory_allocated() == 3 << 20
    assert device.counters.peak_allocated_bytes == 64 << 20


def test_recurrent_layers_have_one_weight_buffer(device: SimulatedDevice) -> None:
    layer = nn.LSTM(16, 32, 2, batch_first=True).cuda()
    assert len({weight.untyped_storage()._cdata for weight in layer.parameters()}) == 1
    made, (last, cell) = layer(torch.randn(4, 7, 16, device="cuda"))
    assert made.shape == (4, 7, 32)
    assert last.shape == cell.shape == (2, 4, 32)
    made.sum().backward()
    assert all(weight.grad is not None and weight.grad.shape == weight.shape for weight in layer.parameters())
    gru = nn.GRU(16, 32, bidirectional=True).cuda()
    assert gru(torch.randn(7, 4, 16, device="cuda"))[0].shape == (7, 4, 64)


def test_data_are_loaded_in_the_process_itself(device: SimulatedDevice) -> None:
    labels = torch.arange(10)
    loader = DataLoader(TensorDataset(labels), batch_size=5, num_workers=4, pin_memory=True, persistent_workers=True)
    batches = [batch.to("cuda", non_blocking=True) for (batch,) in loader]
    assert [batch.shape for batch in batches] == [(5,), (5,)]
    assert labels.sum().item() == 45


def test_pinned_tensors_are_made_on_the_host(device: SimulatedDevice) -> None:
    before = torch.cuda.memory_allocated()
    for made in (torch.empty(4, pin_memory=True), torch.zeros(1 << 22, pin_memory=True)):
        assert made.device.type == "cpu"
    assert torch.zeros(3, pin_memory=True).tolist() == [0, 0, 0]
    assert torch.cuda.memory_allocated() == before


def test_activations_that_are_saved_in_pinned_memory_take_none_of_the_gpu(device: SimulatedDevice) -> None:
    data = torch.randn(1 << 20, device="cuda", requires_grad=True)
    scaled = data * 2
    before = torch.cuda.memory_allocated()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        made = scaled.exp()
    del scaled
    assert torch.cuda.memory_allocated() == before
    made.sum().backward()
    assert present(data.grad).shape == data.shape


def test_a_value_that_was_never_computed_is_told(device: SimulatedDevice) -> None:
    data = nn.Linear(4, 3).cuda()(torch.randn(4, device="cuda")).detach()
    assert data.sum().item() == 0.5
    assert not bool(torch.isnan(data).any())
    assert data.cpu().numpy().shape == (3,)
    assert data.tolist() == pytest.approx([0.5, 0.5, 0.5], rel=0.01)
    assert any(sentence.startswith("test_simulated_card.py:") for sentence in SAID)


def test_the_branch_that_was_taken_is_told(device: SimulatedDevice) -> None:
    loss = nn.Linear(4, 3).cuda()(torch.randn(4, device="cuda")).sum()
    taken = ["above" if loss > 2 else "below" for _ in range(2)]
    assert taken == ["above", "below"]
    assert any("alternately" in sentence and "test_simulated_card.py" in sentence for sentence in SAID)
    assert {False: "plain"}[bool(loss > 2)] == "plain"
    assert any("taken as False" in sentence for sentence in SAID)


@torch.inference_mode()
def test_a_condition_without_gradients_is_decided_as_well(device: SimulatedDevice) -> None:
    loss = nn.Linear(4, 3).cuda()(torch.randn(4, device="cuda")).sum()
    reached = False
    if loss > 2:
        reached = True
    assert reached


def requests_of(device: SimulatedDevice, model: nn.Module, data: torch.Tensor) -> list[tuple[str, int]]:
    """Return the operator and the bytes of each request that a call of a model makes."""
    names, first = device.operators, len(device.events)
    model(data)
    labels = {number: name for name, number in names.items()}
    return [(labels[event[6]], event[2]) for event in device.events[first:] if event[0] == Action.ALLOC]


def test_inference_mode_needs_the_memory_of_other_code_without_gradients(device: SimulatedDevice) -> None:
    """PyTorch calls the operator of a convolution or of a linear layer itself there, not those it is made of."""
    layers = [nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 64)]
    model, data = nn.Sequential(*layers).cuda().half().eval(), torch.ones(4, 8, 32, 32, device="cuda").half()
    with torch.inference_mode():
        found = requests_of(device, model, data)
    assert ("cuBLAS workspace", 32 << 20) in found
    with torch.no_grad():
        again = requests_of(device, model, data)
    kept = [one for one in found if one[0] == "cuBLAS workspace"]
    assert [one for one in found if one not in kept] == again


def test_an_operator_with_a_kernel_of_its_own_is_not_taken_apart(device: SimulatedDevice) -> None:
    data = torch.ones(4, 8, device="cuda", requires_grad=True)
    torch.nn.functional.silu(data).sum().backward()
    assert "aten.silu_backward.default" in device.operators
    assert "aten.sigmoid.default" not in device.operators


def test_a_module_that_is_moved_to_meta_has_new_parameters(device: SimulatedDevice) -> None:
    layer = nn.Linear(4, 3).cuda()
    weight, before = layer.weight, torch.cuda.memory_allocated()
    assert layer.to("meta").weight.device.type == "meta"
    assert weight.is_cuda
    assert torch.cuda.memory_allocated() == before - 512
    made = torch.func.functional_call(
        layer, {"weight": weight, "bias": torch.zeros(3, device="cuda")}, torch.ones(2, 4).cuda()
    )
    assert made.is_cuda


def test_values_of_a_training_are_finite(device: SimulatedDevice) -> None:
    data = nn.Linear(4, 3).cuda()(torch.randn(4, device="cuda"))
    assert torch.isfinite(data).all().item() is True
    assert torch.isnan(data).any().item() is torch.isinf(data).any().item() is bool((data != data).any()) is False
    assert data[torch.isfinite(data)].shape == (3,)
    assert not [sentence for sentence in SAID if "condition" in sentence]


def test_each_tensor_has_another_value_that_stays(device: SimulatedDevice) -> None:
    data = nn.Linear(4, 3).cuda()(torch.randn(4, device="cuda")).detach()
    one, other = data.sum(), data.mean()
    assert one.item() == one.item() > other.item() > 0
    before = one.item()
    one.mul_(2)
    assert one.item() < before
    reached = 0
    for _ in range(5):
        if data.sum().item() > 0:
            break
        reached += 1
    assert reached


def test_an_operator_without_a_fake_kernel_is_named(device: SimulatedDevice) -> None:
    library = torch.library.Library("gpuledger_test", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    library.impl("mystery", lambda x: x.clone(), "CPU")
    with pytest.raises(NotModelledError, match=r"gpuledger_test\.mystery"):
        torch.ops.gpuledger_test.mystery(torch.randn(2, device="cuda"))
    library._destroy()


def test_nothing_is_written(device: SimulatedDevice, tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch.save({"a": torch.randn(2, device="cuda")}, tmp_path / "checkpoint.pt")
    assert not (tmp_path / "checkpoint.pt").exists()
    assert any("torch.save" in sentence for sentence in SAID)


def test_packed_sequences_go_through_cudnn_without_their_padding(device: SimulatedDevice) -> None:
    layer = nn.LSTM(8, 16, 2, bidirectional=True).cuda()
    lengths = torch.tensor([10, 10, 7, 1])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(10, 4, 8, device="cuda"), lengths)
    made, _ = layer(packed)
    assert made.data.shape == (28, 32)
    padded, told = nn.utils.rnn.pad_packed_sequence(made)
    assert padded.shape == (10, 4, 32)
    assert torch.equal(told, lengths)
    assert nn.utils.rnn.pad_packed_sequence(made, batch_first=True)[0].shape == (4, 10, 32)
    padded.sum().backward()
    weight = layer.get_parameter("weight_ih_l0")
    assert present(weight.grad).shape == weight.shape


def test_cells_run_in_fused_kernels(device: SimulatedDevice) -> None:
    """Beside hidden state and cell an LSTM's keeps four values a number for backward, a GRU's five."""
    data = torch.randn(4, 8, device="cuda")
    cells: list[tuple[Any, int]] = [(nn.LSTMCell(8, 512).cuda(), 4), (nn.GRUCell(8, 512).cuda(), 5)]
    for cell, kept in cells:
        before = len(device.events)
        made = cell(data)
        sizes = [event[2] for event in device.events[before:] if event[0] == Action.ALLOC]
        assert 4 * 512 * kept * 4 in sizes
        (made[0] if isinstance(made, tuple) else made).sum().backward()
        assert cell.weight_hh.grad.shape == cell.weight_hh.shape


def test_an_inner_region_without_autocast_leaves_the_outer_one_as_it_was(device: SimulatedDevice) -> None:
    """Rotary embeddings of the transformers library are computed in such a region."""
    linear, data = nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.autocast("cuda", enabled=False):
            assert not torch.is_autocast_enabled()
            assert linear(data).dtype == torch.float32
        assert torch.is_autocast_enabled()
        with torch.autocast("cuda", dtype=torch.float16):
            assert nn.Linear(4, 4).cuda()(data).dtype == torch.float16
        assert linear(data).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled()
    assert linear(data).dtype == torch.float32


def test_cross_entropy_stays_in_half_precision_under_autocast(device: SimulatedDevice) -> None:
    """CUDA's autocast does not touch it, the CPU's does: its softmax is of halves, only its loss is of floats."""
    logits = torch.randn(64, 1000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(64, dtype=torch.int64, device="cuda")
    before = len(device.events)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.nn.functional.cross_entropy(logits, labels)
    sizes = [event[2] for event in device.events[before:] if event[0] == Action.ALLOC]
    assert sizes.count(64 * 1000 * 2) == sizes.count(64 * 1000 * 4) == 1


def test_a_mask_that_is_not_dense_ends_in_plain_attention(device: SimulatedDevice) -> None:
    """As T5's on a GPU: scores are in memory; with a dense mask they are not."""
    query = torch.randn(2, 4, 64, 32, device="cuda", requires_grad=True)
    mask = torch.zeros(64, 64, 4, device="cuda").permute(2, 0, 1).unsqueeze(0)
    scores_bytes = 2 * 4 * 64 * 64 * 4
    for bias, held in ((mask, True), (mask.contiguous(), False)):
        before = len(device.events)
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=bias).sum().backward()
        sizes = [event[2] for event in device.events[before:] if event[0] == Action.ALLOC]
        assert (scores_bytes in sizes) == held


def test_programs_of_other_kinds_are_followed(device: SimulatedDevice) -> None:
    """Sizes that depend on values, gradients of gradients, wrapped tensors, sparse gradients and distributions."""
    table = nn.Embedding(100, 8, sparse=True).cuda()
    torch.optim.SparseAdam(table.parameters()).zero_grad()
    table(torch.zeros(4, dtype=torch.int64, device="cuda")).sum().backward()
    assert present(table.weight.grad).is_sparse
    scores = torch.randn(50, 4, 20, device="cuda").log_softmax(-1).requires_grad_()
    labels = torch.ones(4, 10, dtype=torch.int64, device="cuda")
    lengths = torch.full((4,), 50), torch.full((4,), 10)
    torch.nn.functional.ctc_loss(scores, labels, *lengths).backward()
    assert present(scores.grad).shape == scores.shape
    model = nn.Linear(8, 4).cuda()
    data = torch.randn(16, 8, device="cuda", requires_grad=True)
    slope = torch.autograd.grad(model(data).sum(), data, create_graph=True)[0]
    slope.norm(2, 1).mean().backward()
    named = dict(model.named_parameters())
    one = torch.func.grad(lambda weights, row: torch.func.functional_call(model, weights, (row,)).sum())
    assert torch.func.vmap(one, (None, 0))(named, data)["weight"].shape == (16, 4, 8)
    choice = torch.distributions.Categorical(logits=model(data))
    assert choice.log_prob(choice.sample()).shape == (16,)


def test_the_first_bytes_are_told_once() -> None:
    told: list[int] = []
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    device.at_first_bytes = lambda: told.append(device.counters.alloc_count)
    device.malloc(512, "first")
    device.malloc(512, "second")
    assert told == [0]


def test_projected_outputs_have_the_size_of_the_projection(device: SimulatedDevice) -> None:
    layer = nn.LSTM(8, 64, 2, bidirectional=True, proj_size=16).cuda()
    made, (last, cell) = layer(torch.randn(10, 4, 8, device="cuda"))
    assert (made.shape, last.shape, cell.shape) == ((10, 4, 32), (4, 4, 16), (4, 4, 64))
    made.sum().backward()
    assert all(present(weight.grad).shape == weight.shape for weight in layer.parameters())


def test_a_request_larger_than_every_gpu_fails_as_on_a_gpu(device: SimulatedDevice) -> None:
    """A program that halves its batch until it fits begins with such a one."""
    device.largest_request_bytes = LARGEST_REQUEST_BYTES
    before = device.counters.allocated_bytes
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 1179648.00 GiB"):
        torch.empty(1 << 24, 9, 2048, 1024, device="cuda")
    assert device.counters.allocated_bytes == before
    kept = torch.empty(1 << 40, device="cuda")  # more than this GPU has: by how much is what an estimate says
    assert device.counters.allocated_bytes == before + kept.nbytes
