"""Findings: a saving is what a replay without those bytes gives, each can be shown, each rule fires on its cause."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from card_recordings import RECORDED, post_recording
from click.testing import CliRunner
from synthetic import HOSTILE, make_run

import gpuledger
from gpuledger.analyze.memory.families import find_families
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lines.source_lines import line_texts, read_stacks
from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.findings import MOST, find_findings
from gpuledger.analyze.overview.process_bytes import read_outside
from gpuledger.analyze.view.options import ViewOptions
from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.model.imported import rows_to_table
from gpuledger.model.manifest import read_json, read_rank_manifest
from gpuledger.model.run import Rank, read_run, write_table
from gpuledger.model.run_directory import write_json
from gpuledger.report.html.payload import build_payload


def named(rank: Rank, start: str) -> Finding | None:
    return next((finding for finding in find_findings(rank) if finding.title.startswith(start)), None)


def replay(rank: Rank, category: str, fraction: float) -> float:
    """Return the peak without a fraction of one category's bytes, by going through the events one by one."""
    changes: dict[int, float] = {}
    for row in rank.table("blocks").to_pylist():
        size = row["allocated_bytes"] * (1 - fraction if row["category"] == category else 1)
        changes[row["alloc_index"]] = changes.get(row["alloc_index"], 0) + size
        if row["free_requested_index"] is not None:
            changes[row["free_requested_index"]] = changes.get(row["free_requested_index"], 0) - size
    return float(np.cumsum([changes[index] for index in sorted(changes)]).max())


def test_the_saving_is_what_a_replay_without_those_bytes_gives(tmp_path: Path) -> None:
    rank = post_recording("lstm", tmp_path)
    found = named(rank, "Optimizer state is 30 % of the peak")
    assert found
    assert found.saving_bytes == pytest.approx(replay(rank, "x", 0) - replay(rank, "optimizer_state", 0.75), abs=1)


@pytest.mark.parametrize("name", RECORDED)
def test_findings_of_a_card_are_few_ordered_and_below_the_peak(name: str, tmp_path: Path) -> None:
    rank = post_recording(name, tmp_path)
    found = find_findings(rank)
    peak = replay(rank, "x", 0)
    reserved = max(rank.table("counters").column("peak_reserved_bytes").to_pylist())
    assert 1 <= len(found) <= MOST
    sizes = [finding.saving_bytes for finding in found]
    assert sizes == sorted(sizes, reverse=True)
    assert all(0 < size < max(peak, reserved) for size in sizes)
    assert len({finding.title for finding in found}) == len(found)


@pytest.mark.parametrize("name", RECORDED)
def test_every_command_runs_and_is_about_the_run(name: str, tmp_path: Path) -> None:
    rank = post_recording(name, tmp_path)
    run = rank.directory.parent
    write_json(run / "manifest.json", {"schema_version": 1})
    for finding in find_findings(rank):
        words = [str(run) if word == "RUN" else word for word in finding.command]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        assert len(result.stdout.splitlines()) > 3


def test_the_layers_of_a_recorded_gpt2_are_one_family(tmp_path: Path) -> None:
    rank = post_recording("gpt2", tmp_path)
    family = find_families(rank)[0]
    assert (family.name, family.class_name, family.count, family.depth) == ("transformer.h.* (12)", "GPT2Block", 12, 3)
    found = named(rank, "Activations of transformer.h.* (12)")
    assert found
    assert found.command == ("show", "RUN", "--by", "module", "--depth", "3")


def test_without_a_card_nothing_is_said_of_reserved_bytes(tmp_path: Path) -> None:
    rank = read_run(make_run(tmp_path / "a.ledger", cuda=False, blocks=300)).rank()
    assert not [finding for finding in find_findings(rank) if "reserve" in finding.title]


def test_advice_knows_what_is_on_already(tmp_path: Path) -> None:
    rank = post_recording("lstm", tmp_path)
    place = rank.directory / "manifest.json"
    advice = {}
    for on in (False, True):
        write_json(place, read_json(place) | {"allocator_settings": {"expandable_segments": on}})
        found = named(Rank(0, rank.directory, read_rank_manifest(place.parent)), "28 % of the reserved memory")
        assert found
        advice[on] = found.advice
    assert "expandable_segments:True" in advice[False]
    assert "enabled already" in advice[True]


@pytest.mark.parametrize(
    ("unused_mib", "title"),
    [(6144, "75 % of the reserved memory was never in use"), (1, "28 % of the reserved memory was never in use")],
    ids=["gaps", "a larger batch"],
)
def test_gaps_that_came_after_the_recorded_steps_are_found(unused_mib: int, title: str, tmp_path: Path) -> None:
    """Batches of ever new lengths leave more and more of them, long after the recorded steps."""
    rank = post_recording("lstm", tmp_path)
    rows = rank.table("counters").to_pylist()
    peaks = {"peak_allocated_bytes": (8192 - unused_mib) << 20, "peak_reserved_bytes": 8192 << 20}
    write_table(rank.directory, rows_to_table("counters", [*rows[:-1], rows[-1] | peaks]), "counters")
    changed = Rank(0, rank.directory, read_rank_manifest(rank.directory))
    found = named(changed, title)
    assert found
    assert ("outside the recorded steps" in found.evidence) == (unused_mib > 1)
    assert (found.saving_bytes == unused_mib << 20) == (unused_mib > 1)


def without_workspaces(rank: Rank) -> Rank:
    """Return a run in which what the libraries keep is freed as temporaries are, so that it can be advised on."""
    return changed(rank, "blocks", lambda row: {"category": "temporary"} if row["category"] == "workspace" else {})


def test_a_run_without_modules_names_none(tmp_path: Path) -> None:
    rank = without_workspaces(post_recording("gan", tmp_path))
    assert [one for one in find_findings(rank) if re.match(r"Discriminator.7( \(\w+\))? alone uses", one.title)]
    table = rank.table("blocks")
    place = table.schema.get_field_index("module_id")
    bare = table.set_column(place, table.schema.field(place), pa.nulls(table.num_rows, pa.int32()))
    write_table(rank.directory, bare, "blocks")
    assert not [
        finding for finding in find_findings(Rank(0, rank.directory, rank.manifest)) if "alone" in finding.title
    ]


def test_another_process_on_the_card_is_named(tmp_path: Path) -> None:
    rank = read_run(make_run(tmp_path / "a.ledger", blocks=1500)).rank()
    assert not named(rank, "Other processes")
    place = rank.directory / "manifest.json"
    write_json(place, read_json(place) | {"pid": 99})
    found = named(Rank(0, rank.directory, read_rank_manifest(place.parent)), "Other processes use")
    assert found
    assert found.command[0] == "balance"


@pytest.mark.parametrize("hostile", [False, True])
def test_the_payload_holds_them_with_the_runs_own_name(hostile: bool, tmp_path: Path) -> None:
    from gpuledger.analyze.view.view import build_view
    from gpuledger.report.html.payload import build_payload

    run = read_run(make_run(tmp_path / "a b.ledger", blocks=400, hostile_names=hostile))
    found = build_payload(build_view(run))["views"][0]["findings"]
    assert found
    assert json.dumps(found, allow_nan=False)
    assert {finding["command"].split(" ", 2)[0] for finding in found} == {"gpuledger"}
    assert all("'a b.ledger'" in finding["command"] for finding in found)
    assert HOSTILE


pytest.importorskip("torch")
import torch  # noqa: E402


def record_training(tmp_path: Path, step: Any) -> Rank:
    """Return the recording of three steps of ``step(model, optimizer)`` on CPU tensors."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(3):
            step(model, optimizer)
    return recording.run().rank()


@pytest.mark.torch
@pytest.mark.parametrize("late", [True, False])
def test_gradients_that_stay_through_the_forward_are_found(late: bool, tmp_path: Path) -> None:
    def step(model: Any, optimizer: Any) -> None:
        if not late:
            optimizer.zero_grad()
        loss = model(torch.randn(128, 128)).square().mean()
        if late:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    found = named(record_training(tmp_path, step), "Gradients of the previous step")
    assert (found is not None) is late


@pytest.mark.torch
@pytest.mark.parametrize("leaks", [True, False])
def test_what_every_step_leaves_behind_is_found(leaks: bool, tmp_path: Path) -> None:
    losses = []

    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        hidden = model(torch.randn(400, 128))
        losses.append(hidden if leaks else hidden.sum().item())
        hidden.sum().backward()
        optimizer.step()

    rank = record_training(tmp_path, step)
    found = named(rank, "Every step keeps")
    assert (found is not None) is leaks
    assert find_peak(rank).label == "peak"


@pytest.mark.torch
def test_a_small_part_of_the_peak_is_found_if_every_step_leaves_it_behind(tmp_path: Path) -> None:
    losses = []

    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        hidden = model(torch.randn(6400, 128))
        hidden.sum().backward()
        losses.append(model(torch.randn(30, 128)))
        optimizer.step()

    rank = record_training(tmp_path, step)
    found = named(rank, "Every step keeps")
    assert found
    assert found.peak_after_bytes
    assert found.saving_bytes < 0.03 * found.peak_after_bytes


@pytest.mark.torch
def test_temporaries_of_the_optimizer_are_not_those_of_a_loss(tmp_path: Path) -> None:
    """The saving is what ``fused=True`` saves."""
    peaks = {}
    for fused in (False, True):
        model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(3)))
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        with gpuledger.record(out=tmp_path / f"fused-{fused}", devices="cpu") as recording:
            for _ in range(3):
                model(torch.randn(16, 128)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        rank = recording.run().rank()
        found = named(rank, "Temporaries of the optimizer")
        peaks[fused] = recording.peak_allocated_bytes if fused else found.peak_after_bytes if found else None
        assert (found is None) is fused
        assert not named(rank, "Tensors outside modules")
    assert peaks[False] == pytest.approx(peaks[True], rel=0.01)


@pytest.mark.torch
@pytest.mark.parametrize(("name", "action"), [("LBFGS", "halve the optimizer state"), ("Adam", "use 8-bit")])
def test_a_history_of_steps_has_no_8_bit_states(name: str, action: str, tmp_path: Path) -> None:
    model = torch.nn.Linear(128, 128)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3)
    data = torch.randn(16, 128)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        loss.backward()
        return loss

    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(3):
            optimizer.step(closure)
    found = named(recording.run().rank(), "Optimizer state")
    assert found
    assert found.action.startswith(action)


@pytest.mark.torch
def test_states_of_a_programs_own_update_are_no_optimizers(tmp_path: Path) -> None:
    model = torch.nn.Linear(256, 256)
    state = {weight: (torch.zeros_like(weight), torch.zeros_like(weight)) for weight in model.parameters()}
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(4):
            model.zero_grad()
            model(torch.ones(8, 256)).square().mean().backward()
            with torch.no_grad():
                for weight, (mean, square) in state.items():
                    assert weight.grad is not None
                    mean.mul_(0.9).add_(weight.grad, alpha=0.1)
                    square.mul_(0.99).addcmul_(weight.grad, weight.grad, value=0.01)
                    weight.sub_(0.01 * mean / (square.sqrt() + 1e-8))
    found = named(recording.run().rank(), "Optimizer state")
    assert found
    assert found.action == "keep the optimizer state in half as many bits"
    assert found.saving_bytes == 4 * (256 * 256 + 256)


@pytest.mark.torch
@pytest.mark.parametrize(("width", "stacks"), [(1, True), (2000, True), (2000, False)])
def test_an_optimizer_of_sparse_gradients_has_no_8_bit_states_and_no_fused_form_of_another(
    width: int, stacks: bool, tmp_path: Path
) -> None:
    """Of two optimizers, the states of the other one are counted, if there are enough of them and stacks tell them."""
    words, head = torch.nn.Embedding(4000, 16, sparse=True), torch.nn.Linear(16, width)
    optimizers = [torch.optim.SparseAdam(words.parameters()), torch.optim.Adam(head.parameters(), fused=True)]
    with gpuledger.record(out=tmp_path / "run", devices="cpu", stacks=stacks) as recording:
        for _ in range(3):
            head(words(torch.randint(4000, (20,)))).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    rank = recording.run().rank()
    state = named(rank, "Optimizer state")
    assert (state is None) is (width == 1 or not stacks)
    if state:
        assert state.is_upper_bound  # the states of blocks without a stack could be of either
        assert state.saving_bytes == pytest.approx(0.75 * 2 * 4 * 16 * width, rel=0.05)
    assert not named(rank, "Temporaries of the optimizer")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("rows", "action"), [(4, "halve the batch size and accumulate gradients"), (900, "halve the batch size")]
)
def test_gradients_are_accumulated_in_a_training_and_not_in_its_validation(
    rows: int, action: str, tmp_path: Path
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model.train()(torch.randn(300, 16)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                model.eval()(torch.randn(rows, 16))
    found = named(recording.run().rank(), "Memory that grows with the batch size")
    assert found
    assert found.action == action


@pytest.mark.torch
@pytest.mark.parametrize("is_graph", [True, False])
def test_a_whole_graph_has_no_batch_to_halve(is_graph: bool, tmp_path: Path) -> None:
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 256)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(nodes).relu()
            return edges @ result if is_graph else result + edges

    model, nodes = Network(), torch.randn(300, 16)
    edges = torch.rand(300, 300) if is_graph else torch.rand(300, 1)
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(3):
            model(nodes, edges).square().mean().backward()
    rank = recording.run().rank()
    assert rank.manifest.has_batch is not is_graph
    assert (named(rank, "Memory that grows with the batch size") is None) is is_graph


@pytest.mark.torch
def test_states_of_small_parameters_stay_in_32_bits(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(8)))
    optimizer = torch.optim.Adam(model.parameters())
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 32)).square().mean().backward()
            optimizer.step()
    assert not named(recording.run().rank(), "Optimizer state")


@pytest.mark.torch
def test_the_loss_in_a_closure_of_l_bfgs_has_no_fused_form(tmp_path: Path) -> None:
    places = torch.linspace(0, 1, 5000)
    weights = torch.zeros(10, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=10)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        fitted = sum((weights[power] * places**power for power in range(10)), torch.zeros(()))
        loss = (fitted - torch.sin(6 * places)).square().mean()
        loss.backward()
        return loss

    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        for _ in range(3):
            optimizer.step(closure)
    rank = recording.run().rank()
    assert find_findings(rank)
    assert not named(rank, "Temporaries of the optimizer")


@pytest.mark.torch
def test_an_inference_is_not_told_of_a_loss(tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 64)
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording, torch.no_grad():
        for _ in range(3):
            result = model(torch.randn(64, 64)) @ torch.ones(64, 512)
            result = result * 2 + result
    found = named(recording.run().rank(), "Tensors outside modules")
    assert found
    assert "most of them allocated at test_findings.py:" in found.action
    assert "loss" not in found.action.partition(" at test_findings.py:")[0] + found.advice


@pytest.mark.torch
@pytest.mark.parametrize("with_graph", [True, False])
def test_an_inference_is_not_told_of_a_backward(with_graph: bool, tmp_path: Path) -> None:
    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(64, 64)
            self.kept: list[torch.Tensor] = []

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            self.kept.append(data + 1)
            return self.inner(data)

    model = torch.nn.Sequential(*(Cached() for _ in range(6)))
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording, torch.set_grad_enabled(with_graph):
        for _ in range(3):
            model(torch.randn(4096, 64))
    found = find_findings(recording.run().rank())
    (layers,) = [one for one in found if one.title.startswith("Activations of" if with_graph else "Caches are")]
    assert layers.evidence.endswith("though no backward was recorded") is with_graph
    assert ("inference_mode" if with_graph else "use_cache=False") in layers.advice
    cached_bytes = 6 * 3 * 4096 * 64 * 4
    assert with_graph or layers.saving_bytes == cached_bytes // 2
    assert not [one for one in found if "accumulated" in one.advice or "checkpointing" in one.advice]


def changed(rank: Rank, table: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Rank:
    """Return a rank with ``change`` made in every row of a table."""
    rows = [row | change(row) for row in rank.table(table).to_pylist()]
    write_table(rank.directory, rows_to_table(table, rows), table)
    return Rank(rank.number, rank.directory, rank.manifest)


@pytest.mark.parametrize("name", RECORDED)
def test_a_finding_says_what_the_peak_would_be(name: str, tmp_path: Path) -> None:
    rank = post_recording(name, tmp_path)
    peak = replay(rank, "x", 0)
    for finding in find_findings(rank):
        assert finding.peak_after_bytes == (peak - finding.saving_bytes if finding.is_replayed else None)


SHARDED = {
    "wrappers": ("modules", lambda row: {"class_name": f"FSDP{row['class_name']}"}),
    "shards": ("blocks", lambda row: {"category": "sharded_weight"} if row["category"] == "weight" else {}),
}


@pytest.mark.parametrize("shown_by", SHARDED)
def test_a_sharded_model_is_not_told_to_shard(shown_by: str, tmp_path: Path) -> None:
    rank = post_recording("lstm", tmp_path)
    before = named(rank, "Optimizer state")
    sharded = changed(rank, *SHARDED[shown_by])
    after = named(sharded, "Optimizer state")
    assert before
    assert after
    assert ["sharding" in one.advice for one in (before, after)] == [True, False]


def with_shards(rank: Rank, rows: list[tuple[int, int]]) -> Rank:
    """Return a rank with rows in the table of shards: module and number of parts."""
    table = [
        {"name_id": None, "module_id": module_id, "whole_bytes": 4, "shard_bytes": 4 // parts, "parts": parts}
        for module_id, parts in rows
    ]
    write_table(rank.directory, rows_to_table("shards", table), "shards")
    return Rank(rank.number, rank.directory, rank.manifest)


def test_weights_that_are_whole_on_every_rank_are_found(tmp_path: Path) -> None:
    rank = post_recording("gpt2", tmp_path)
    paths = {row["path"]: row["module_id"] for row in rank.table("modules").to_pylist()}
    head, layer = paths["transformer.wte"], paths["transformer.h.0.mlp.c_fc"]
    found = named(with_shards(rank, [(head, 1), (layer, 4)]), "transformer.wte")
    assert found is not None
    assert found.title == "transformer.wte is whole on every rank"
    assert found.evidence.endswith("divided into 4 parts")
    held = sum(
        row["allocated_bytes"]
        for row in rank.table("blocks").to_pylist()
        if row["module_id"] == head and row["category"] in ("weight", "gradient", "optimizer_state")
    )
    assert 0 < found.saving_bytes <= 0.75 * held
    for rows in ([(head, 1), (layer, 1)], [(head, 4), (layer, 4)], []):
        assert named(with_shards(rank, rows), "transformer.wte is whole") is None


def test_a_checkpointed_model_is_not_told_to_checkpoint(tmp_path: Path) -> None:
    rank = post_recording("gpt2", tmp_path)
    members = find_families(rank)[0].members
    assert named(rank, "Activations of transformer.h.*")
    again = max(row["alloc_index"] for row in rank.table("blocks").to_pylist() if row["module_id"] in members)
    recomputed = changed(
        rank,
        "blocks",
        lambda row: {"phase": "backward", "category": "activation"} if row["alloc_index"] == again else {},
    )
    assert not named(recomputed, "Activations of transformer.h.*")


@pytest.mark.parametrize(("dtype", "advised"), [("float32", True), ("uint8", False)])
def test_an_optimizer_with_small_states_is_not_told_to_make_them_smaller(
    dtype: str, advised: bool, tmp_path: Path
) -> None:
    class TwoStates(torch.optim.Optimizer):
        def __init__(self, weights: Iterator[torch.nn.Parameter]) -> None:
            super().__init__(weights, {})

        @torch.no_grad()
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            for weight in self.param_groups[0]["params"]:
                if not self.state[weight]:
                    for name in ("mean", "square"):
                        self.state[weight][name] = torch.zeros_like(weight, dtype=getattr(torch, dtype))

    model = torch.nn.Linear(512, 512)
    optimizer = TwoStates(model.parameters())
    with gpuledger.record(out=tmp_path / "run", steps=(1, 3), passes="memory", devices="cpu") as recording:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(4, 512)).sum().backward()
            optimizer.step()
    assert bool(named(recording.run().rank(), "Optimizer state")) == advised


def test_logits_and_loss_outside_modules_are_named(tmp_path: Path) -> None:
    rank = without_workspaces(post_recording("gan", tmp_path))
    assert not named(rank, "Tensors outside modules")
    largest = next(one for one in find_findings(rank) if "alone uses" in one.title).search
    ids = [row["module_id"] for row in rank.table("modules").to_pylist() if row["path"] == largest]
    outside = changed(rank, "blocks", lambda row: {"module_id": None} if row["module_id"] in ids else {})
    found = named(outside, "Tensors outside modules")
    assert found
    assert found.is_upper_bound
    assert "loss" in found.action
    assert "allocated at" not in found.evidence
    with_line = changed(outside, "blocks", lambda row: {"stack_id": 0} if row["module_id"] is None else {})
    line = line_texts(read_stacks(with_line))[0]
    again = named(with_line, "Tensors outside modules")
    assert again
    assert again.evidence.endswith(f"allocated at {line}")
    assert again.action == f"reduce tensors outside modules, most of them allocated at {line}"


@pytest.mark.parametrize("is_outside", [False, True])
def test_the_workspace_of_a_library_is_not_to_be_reduced(is_outside: bool, tmp_path: Path) -> None:
    """It has the library's own size and stays: no change of a module or of the code around it makes it smaller."""
    rank = post_recording("gan", tmp_path)
    kept = [row["module_id"] for row in rank.table("blocks").to_pylist() if row["category"] == "workspace"]
    if is_outside:
        rank = changed(rank, "blocks", lambda row: {"module_id": None} if row["module_id"] in kept else {})
    titles = [one.title for one in find_findings(rank)]
    more = [one.title for one in find_findings(without_workspaces(rank)) if one.title not in titles]
    start = "Tensors outside modules are" if is_outside else "Discriminator.7 (Linear) alone uses"
    assert [title for title in more if title.startswith(start)]
    assert not [title for title in titles if title.startswith(start)]


def test_fit_says_which_change_makes_a_run_fit(tmp_path: Path) -> None:
    rank = post_recording("lstm", tmp_path)
    run = rank.directory.parent
    write_json(run / "manifest.json", {"schema_version": 1})
    document = json.loads(CliRunner().invoke(main, ["show", str(run), "--json"]).stdout)
    assert {one["fits"] for one in document["findings"]} == {None}
    peaks = sorted(one["peak_after_bytes"] for one in document["findings"] if one["peak_after_bytes"])
    beyond = document["recorded_peak_reserved_bytes"] - document["recorded_peak_allocated_bytes"]
    outside = read_outside(rank, 0)
    assert outside is not None
    assert outside.total_bytes == 758 << 20  # what NVML reports of this process beyond the allocator's segments
    beyond += outside.total_bytes
    fit = str(peaks[0] + beyond)
    found = json.loads(CliRunner().invoke(main, ["show", str(run), "--json", "--fit", fit]).stdout)["findings"]
    assert [one["fits"] for one in found if one["peak_after_bytes"]] == [
        one["peak_after_bytes"] <= peaks[0] for one in found if one["peak_after_bytes"]
    ]
    text = CliRunner().invoke(main, ["show", str(run), "--fit", fit]).stdout
    assert re.search(r"^Fits +no, .* of .* needed", text, re.MULTILINE)
    assert re.search(r"peak then .*fit", text)
    page = tmp_path / "report.html"
    assert CliRunner().invoke(main, ["report", str(run), "--fit", fit, "-o", str(page)]).exit_code == 0
    view = build_view(read_run(run), ViewOptions(fit_bytes=int(fit)))
    shown = build_payload(view)["views"][0]["findings"]
    assert [(one["fit"], one["fits"]) for one in shown] == [(int(fit), one["fits"]) for one in found]
    assert CliRunner().invoke(main, ["show", str(run), "--fit", "much"]).exit_code == 2
