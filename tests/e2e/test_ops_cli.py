"""``gpuledger ops``: capture and list, campaign files, and what every command of the group has."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("torch")

from click.testing import CliRunner, Result
from programs import write_script

from gpuledger.cli.main import main
from gpuledger.cli.ops.group import COMMANDS, ops_group
from gpuledger.errors import InputError
from gpuledger.ops.measure.campaign_file import read_campaign
from gpuledger.ops.workloads.captures import asked_for
from gpuledger.ops.workloads.child import follow
from gpuledger.ops.workloads.programs import capture_program
from gpuledger.ops.workloads.workload import read_workload
from gpuledger.ops.workloads.workload_spec import WorkloadSpec

pytestmark = pytest.mark.torch
CONV = ("--model", "op_models:conv_net", "--gpu", "cpu", "--input", "2x3x8x8")


def ops(*words: str) -> Result:
    return CliRunner().invoke(main, ["ops", *words])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(name: str) -> click.Command:
    found = ops_group.get_command(click.Context(ops_group), name)  # type: ignore[attr-defined]
    assert isinstance(found, click.Command)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_two_examples_that_parse(name: str) -> None:
    result = ops(name, "--help")
    assert result.exit_code == 0, result.stderr
    found = [line.strip() for line in (command(name).epilog or "").splitlines() if "gpuledger ops" in line]
    assert len(found) == 2
    assert [line.strip() for line in result.stdout.splitlines()[-2:]] == found
    for line in found:
        program, group, sub_command, *words = shlex.split(line)
        assert (program, group, sub_command) == ("gpuledger", "ops", name)
        command(name).make_context(name, words)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    assert all(one.help for one in command(name).params if isinstance(one, click.Option))
    assert COMMANDS[name].summary.endswith(".")


def test_a_wrong_command_is_told_its_neighbour() -> None:
    result = ops("captur")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "try gpuledger ops capture" in result.stderr or "ops capture" in result.stderr


# -- capture and list ---


def test_a_model_is_captured_and_listed(desk: Path) -> None:
    result = ops("capture", *CONV)
    assert result.exit_code == 0, result.stderr
    assert "distinct operators" in result.stdout
    assert "gpuledger ops list" in result.stderr
    (path,) = desk.glob("*.workload.json")
    assert path.name == "conv_net-inference-2x3x8x8.workload.json"
    workload = read_workload(path)
    name = path.name.removesuffix(".workload.json")
    layers = json.loads(ops("list", name, "--by", "layer", "--json").stdout)
    assert len(layers) == len(workload.layers)
    operators = json.loads(ops("list", name, "--json").stdout)
    assert [one["digest"] for one in operators] == [use.key.digest for use in workload.uses]
    text = ops("list", name, "--by", "layer").stdout
    assert "Conv2d(3, 8, kernel_size=(3, 3)" in text
    head, *rows = text.splitlines()
    assert all(row[head.index("parameters") + len("parameters") - 1].isdigit() for row in rows)  # flush right
    assert "convolution" in ops("list", name, "-n", "3").stdout


def test_nothing_is_replaced_without_force(desk: Path) -> None:
    (desk / "mine.json").write_text("mine")
    result = ops("capture", *CONV, "-o", "mine.json")
    assert (result.exit_code, (desk / "mine.json").read_text()) == (2, "mine")
    assert ops("capture", *CONV, "-o", "mine.json", "--force").exit_code == 0
    assert read_workload(desk / "mine.json").settings["inputs"] == ["2x3x8x8"]


def test_a_file_that_is_there_is_refused_before_the_program_runs(desk: Path) -> None:
    (desk / "mine.json").write_text("mine")
    write_script(desk, "raise SystemExit('it ran')")
    result = ops("capture", "--gpu", "cpu", "-o", "mine.json", "train.py")
    assert (result.exit_code, "it ran" in result.stderr, "exists" in result.stderr) == (2, False, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("measure", "w", "--energy-coverage", "200%"), "--energy-coverage 200%: must be above 0"),
        (("measure", "w", "--precision", "x"), "--precision x: not a share"),
        (("measure", "w", "--time-limit", "soon"), "--time-limit soon: not a time"),
        (("sum", "w", "--min-coverage", "900"), "--min-coverage 900: must be above 0"),
    ],
)
def test_a_wrong_share_or_time_is_told_with_its_option(words: tuple[str, ...], said: str, desk: Path) -> None:
    result = ops(*words)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_several_sizes_give_several_workloads(desk: Path) -> None:
    result = ops("capture", *CONV, "--input", "2x3x16x16", "-o", "out", "--json")
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)) == len(list((desk / "out").iterdir())) == 2


@pytest.mark.parametrize(
    "words", [[], ["train.py", "--model", "x:y"], ["--model", "op_models:conv_net", "train.py"], ["-m"], ["no.py"]]
)
def test_capture_wants_one_thing(desk: Path, words: list[str]) -> None:
    assert ops("capture", *words).exit_code == 2


@pytest.mark.parametrize("dtype", ["int7", "qint8", "float8_e4m3fn", "nn"])
def test_an_input_of_which_no_values_can_be_drawn_is_refused(dtype: str, desk: Path) -> None:
    result = ops("capture", *CONV[:-1], f"2x3x8x8:{dtype}")
    assert result.exit_code == 2
    assert f"unsupported dtype {dtype}" in result.stderr


def test_a_card_that_is_not_in_the_catalogue(desk: Path) -> None:
    result = ops("capture", "--model", "op_models:conv_net", "--gpu", "h2000")
    assert result.exit_code == 2
    assert "h200" in result.stderr


TRAIN = """
import sys, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(8, 16, device=device)).square().mean().backward()
    optimizer.step()
    print("step", step)
"""


@pytest.mark.usefixtures("quick_children")
def test_a_program_is_followed_to_its_second_step(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAIN)
    found = capture_program([str(script), "1000000"], "h200")
    assert (found.name, found.mode) == ("train-training", "training")
    assert found.settings["device"] == "NVIDIA H200 (simulated)"
    calls: Counter[str] = Counter()
    for use in found.uses:
        calls[use.key.name] += use.count
    assert (calls["addmm"], calls["mm"]) == (2, 3)
    assert len(found.layers) == 3


def test_a_compiled_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TRAIN.replace("optimizer = ", "model = torch.compile(model)\noptimizer = ", 1).replace("sys.argv[1]", "2")
    outcome = followed(tmp_path, source, monkeypatch)
    assert outcome["message"].startswith("torch.compile is used here")
    assert outcome["place"].endswith(".py:5")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    assert followed(tmp_path, source, monkeypatch) == {}


def followed(directory: Path, source: str, monkeypatch: pytest.MonkeyPatch, gpu: str = "cpu") -> dict[str, Any]:
    """Return how the child would end, without a child."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = write_script(directory, source)
    order = {"gpu": gpu, "steps": 2, "name": "train", "answer": str(directory / "step.json")}
    return follow(order, [str(script), "1"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import torch\n1 / 0", "ZeroDivisionError: division by zero"),
        ("print('nothing')", "no training step was seen"),
        ("raise SystemExit(7)", "the program failed with exit status 7"),
    ],
)
def test_a_program_that_gives_no_step_is_said(
    source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words in followed(tmp_path, source, monkeypatch)["message"]


def test_a_model_that_stays_on_the_cpu_is_not_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TRAIN.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"').replace("range(", "range(5 * ")
    outcome = followed(tmp_path, source, monkeypatch, gpu="h200")
    assert "did not use NVIDIA H200" in outcome["message"]


def test_a_program_of_one_step_is_captured_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert followed(tmp_path, TRAIN, monkeypatch) == {}
    found = read_workload(tmp_path / "step.json")
    assert found.settings["notes"] == ["The program ran 1 of 2 steps. The last one was captured."]


# -- campaigns ---


def written(directory: Path, text: str, name: str = "campaign.yml") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_campaign_is_every_model_in_every_mode_and_size(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        mode: [inference, training]
        batch: 8
        gpu: h100
        models:
          - torchvision:resnet18
          - model: torchvision:resnet50
            weights: DEFAULT
            inputs: [32x3x224x224, [32, 3, 299, 299]]
            mode: inference
          - model: torchvision:resnet50
            weights: DEFAULT
            inputs: 32x3x224x224
            mode: inference
        """,
    )
    found = read_campaign(path)
    assert found.gpu == "h100"
    assert found.wanted == (
        WorkloadSpec("torchvision:resnet18", "inference", None, 8),
        WorkloadSpec("torchvision:resnet18", "training", None, 8),
        WorkloadSpec("torchvision:resnet50", "inference", "32x3x224x224", 8, "DEFAULT"),
        WorkloadSpec("torchvision:resnet50", "inference", "32x3x299x299", 8, "DEFAULT"),
    )
    assert [asked_for(one).inputs for one in found.wanted[:2]] == [(), ()]


def test_folders_of_older_files_are_walked(tmp_path: Path) -> None:
    old = "done: true\ninput_size:\n- 32\n- 3\n- 224\n- 224\nmodel_name: alexnet\nweights_name: AlexNet_Weights\n"
    written(tmp_path, old, "A30/alexnet_32,3,224,224/summary.yml")
    written(tmp_path, old.replace("224", "299"), "A30/alexnet_32,3,299,299/summary.yml")
    found = read_campaign(tmp_path / "A30")
    assert found.wanted == (
        WorkloadSpec("torchvision:alexnet", inputs="32x3x224x224", weights="random"),
        WorkloadSpec("torchvision:alexnet", inputs="32x3x299x299", weights="random"),
    )
    assert read_campaign(tmp_path / "A30" / "alexnet_32,3,224,224" / "summary.yml").wanted == found.wanted[:1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [", "not YAML"),
        ("[1, 2]", "expected keys and values"),
        ("modles: []", "unknown key 'modles'"),
        ("models: []", "expected a list of models"),
        ("models: [3]", r"models\[0\]: expected a model's name"),
        ("models: [{weights: x}]", r"models\[0\]: the model is missing"),
        ("models: [a:b, {model: a:b, moed: training}]", r"models\[1\]: unknown key 'moed'"),
        ("models: [{model: a:b, mode: dreaming}]", "mode: 'dreaming', expected inference or training"),
        ("models: [{model: a:b, inputs: [{x: 1}]}]", "expected a size"),
        ("models: [{model: a:b, inputs: [[1, two]]}]", "expected a size"),
        ("models: [{model: a:b, batch: many}]", "batch: 'many': expected a whole number"),
        ("models: [{model: a:b, batch: 0}]", "batch: 0: expected 1 or more"),
        ("models: [a:b]\ngpu: 3", "gpu: 3: expected a string"),
        ("models: !!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_a_wrong_campaign_is_told_where(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_campaign(written(tmp_path, text))
    assert "campaign.yml" in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model_name: 3\ninput_size: [1]", "model_name: 3: expected a string"),
        ("model_name: x\ninput_size: large", "input_size: 'large': expected a list of sizes"),
        ("model_name: x\ninput_size: [1, 0]", "expected a list of sizes"),
        ("model_name: x\ninput_size: [1]\nsize: 3", "unknown key 'size'"),
    ],
)
def test_a_wrong_older_file_is_told_where(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_campaign(written(tmp_path, text, "a/summary.yml").parent)
    assert "summary.yml" in caught.value.message


def test_an_empty_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the directory has no summary\.yml"):
        read_campaign(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read_campaign(tmp_path / "none.yml")


def test_one_model_that_cannot_be_does_not_stop_a_campaign(desk: Path) -> None:
    models: list[dict[str, Any]] = [
        {"model": "op_models:no_such_model", "inputs": "2x3x8x8"},
        {"model": "op_models:conv_net", "inputs": ["2x9x8x8", "2x3x8x8"]},
    ]
    written(desk, json.dumps({"gpu": "cpu", "models": models}))
    result = ops("capture", "--config", "campaign.yml", "--trust-files")
    assert result.exit_code == 3
    assert [path.name for path in desk.glob("*.workload.json")] == ["conv_net-inference-2x3x8x8.workload.json"]
    assert result.stderr.count("not captured: ") == 2
    assert "2 of 3 workloads were not captured" in result.stderr
    assert "op_models has no model no_such_model" in result.stderr
