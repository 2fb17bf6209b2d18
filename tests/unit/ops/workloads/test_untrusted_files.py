"""Campaigns, workloads and operator keys come from files: they name no code to run and no place to write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from operator_keys import key_for

from gpuledger.cli.main import main
from gpuledger.errors import InputError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.workloads.models import parse_model, refuse_code_of_file
from gpuledger.ops.workloads.rebuild import find_operator, rebuild
from gpuledger.ops.workloads.workload import Use, Workload

HOSTILE = "subprocess:getoutput?cmd='touch pwned'"
TRAP = "from pathlib import Path\nPath('imported').touch()\ndef net():\n    Path('called').touch()\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory with a module that leaves a mark when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPULEDGER_DATABASE", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "trap.py").write_text(TRAP)
    return tmp_path


def names_in(directory: Path) -> list[str]:
    return sorted(place.name for place in directory.iterdir())


def workload_of(model: str, weights: str = "random") -> Workload:
    settings = {"model": model, "inputs": ["2x3"], "weights": weights, "optimizer": None, "autocast": None}
    use = Use(key_for(torch.ops.aten.relu.default, torch.ones(2)), 1)
    return Workload("w", "inference", (use,), (), {**settings, "device": "CPU", "notes": []})


@pytest.mark.parametrize("model", [HOSTILE, "trap:net", "os:system?command='touch pwned'"])
@pytest.mark.parametrize("command", ["capture", "campaign"])
def test_a_campaign_file_runs_no_code(here: Path, command: str, model: str) -> None:
    (here / "campaign.yml").write_text(json.dumps({"models": [{"model": model, "inputs": "2x3"}]}))
    before = names_in(here)
    device = ["--gpu", "cpu"] if command == "capture" else ["--device", "cpu"]
    done = CliRunner().invoke(main, ["ops", command, "--config", "campaign.yml", *device])
    assert done.exit_code == 3, done.output
    assert "must not name Python code" in done.stderr
    assert "--trust-files" in done.stderr
    assert names_in(here) == before


def test_a_workload_file_runs_no_code(here: Path) -> None:
    workload_of("trap:net").write(here / "w.workload.json")
    before = names_in(here)
    done = CliRunner().invoke(main, ["ops", "compare", "w.workload.json", "--device", "cpu", "--database", "b.db"])
    assert done.exit_code == 3, done.output
    assert "must not name Python code" in done.stderr
    assert names_in(here) == before


def test_the_user_may_let_a_file_name_code(here: Path) -> None:
    (here / "campaign.yml").write_text('models: [{model: "trap:net", inputs: 2x3}]')
    CliRunner().invoke(main, ["ops", "capture", "--config", "campaign.yml", "--gpu", "cpu", "--trust-files"])
    assert (here / "called").exists()


def test_a_campaign_file_cannot_set_the_flag(here: Path) -> None:
    (here / "campaign.yml").write_text("trust_files: true\nmodels: [{model: 'trap:net', inputs: 2x3}]")
    done = CliRunner().invoke(main, ["ops", "capture", "--config", "campaign.yml", "--gpu", "cpu"])
    assert done.exit_code == 3
    assert not (here / "imported").exists()


def test_a_campaign_file_does_not_say_where_the_database_is(here: Path) -> None:
    (here / "campaign.yml").write_text("database: elsewhere.db\nmodels: [torchvision:resnet18]")
    done = CliRunner().invoke(main, ["ops", "campaign", "--config", "campaign.yml", "--device", "cpu"])
    assert done.exit_code == 3, done.output
    assert "database: the file may not choose the database" in done.stderr
    assert names_in(here) == ["campaign.yml", "trap.py"]


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (HOSTILE, "random"),
        ("timm:resnet18?checkpoint_path='evil.pth'", "random"),
        ("timm:resnet18?pretrained_cfg={'file': 'evil.pth'}", "random"),
        ("transformers:me/evil?trust_remote_code=True", "random"),
        ("transformers:./evil", "random"),
        ("transformers:..", "random"),
        ("transformers:gpt2?attn_implementation='me/evil-kernels'", "random"),
        ("transformers:gpt2", "me/evil"),
        ("transformers:gpt2", "DEFAULT"),
        ("torchvision:resnet18?pretrained=True", "random"),
        ("torchvision:fasterrcnn_resnet50_fpn?weights_backbone=1", "random"),
    ],
)
def test_models_that_can_run_code_or_read_files_are_refused(model: str, weights: str) -> None:
    with pytest.raises(InputError, match=r"campaign\.yml: (model|weights) "):
        refuse_code_of_file(parse_model(model), weights, "campaign.yml")


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("resnet18", "DEFAULT"),
        ("torchvision:vit_b_16?num_classes=10&image_size=32", "random"),
        ("timm:vit_tiny_patch16_224?drop_rate=0.5&img_size=[32, 32]", "augreg"),
        ("transformers:xlm-roberta?num_hidden_layers=2&tie_word_embeddings=False", "random"),
        ("transformers:GPT2LMHeadModel", "random"),
    ],
)
def test_models_of_known_libraries_are_not_refused(model: str, weights: str) -> None:
    refuse_code_of_file(parse_model(model), weights, "campaign.yml")


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.from_file.out",
        "aten.save.default",
        "aten.warn.default",
        "aten.set_.source_Storage",
        "aten._cufft_set_plan_cache_max_size.default",
        "aten.__class__.__base__",
        "image.write_file.default",
        "prim.Print.default",
        "c10d.barrier.default",
        "load_library.__func__.__globals__",
    ],
)
def test_an_operator_that_does_more_than_compute_is_not_called(name: str) -> None:
    with pytest.raises(InputError):
        find_operator(name)


def test_a_key_cannot_write_a_file(here: Path) -> None:
    key = OperatorKey("aten.from_file.default", (str(here / "pwned"), True, 4096))
    with pytest.raises(InputError, match="does more than compute"):
        rebuild(key)()
    assert not (here / "pwned").exists()


def test_a_key_names_no_attribute_of_torch_but_dtypes_layouts_and_formats() -> None:
    for kind, name in (("torch", "load"), ("layout", "hub"), ("memory_format", "float32")):
        key = OperatorKey("aten.relu.default", ({kind: name},))
        with pytest.raises(InputError, match="cannot be recreated"):
            rebuild(key)


@pytest.mark.parametrize("name", ["gelu_.default", "einsum.default", "div_.Tensor_mode", "arange.start", "empty.out"])
def test_operators_that_compute_are_found(name: str) -> None:
    assert find_operator(f"aten.{name}")
