"""Models by name, with stand-ins for the libraries: what is asked of them is what they have.

The real ones are too large for the tests; ``bench/operators/ops_capture.py`` captures and rebuilds their models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from click.testing import CliRunner
from torch import nn

from gpuledger.cli.main import main
from gpuledger.errors import InputError, UsageError
from gpuledger.ops.workloads.captures import CPU, CaptureRequest, capture_model
from gpuledger.ops.workloads.models import build_model, parse_model, without_initial_weights
from gpuledger.ops.workloads.steps import default_inputs, draw_inputs, loss_of, parse_inputs
from gpuledger.ops.workloads.workload import read_workload
from gpuledger.simulate.gpu import card

pytestmark = pytest.mark.torch

TORCHVISION = """
import enum
from torch import nn
class Tiny_Weights(enum.Enum):
    IMAGENET1K_V1 = 1
    DEFAULT = 1
def list_models():
    return ["tiny", "tiny_wide", "detector"]
def get_model_weights(name):
    return Tiny_Weights
def tiny(*, weights=None, channels=2):
    model = nn.Conv2d(3, channels, 3)
    model.asked = weights
    return model
def detector(*, weights=None, weights_backbone=Tiny_Weights.DEFAULT):
    if weights_backbone is not None:
        raise OSError("a download")
    return tiny(weights=weights)
def get_model_builder(name):
    return detector if name == "detector" else tiny
def get_model(name, weights=None, **options):
    if weights is not None:
        print("DOWNLOADED", weights)
    return get_model_builder(name)(weights=weights, **options)
"""
TIMM = """
from torch import nn
def is_model(name):
    return name.partition(".")[0] in list_models()
def list_models():
    return ["vit_tiny"]
def create_model(name, pretrained=False, **options):
    model = nn.Conv2d(3, 2, 3)
    model.default_cfg = {"input_size": (3, 10, 10)}
    model.asked = (name, pretrained)
    return model
"""
TRANSFORMERS = """
from types import SimpleNamespace
from torch import nn
class Settings:
    def __init__(self, vocab_size=11):
        self.vocab_size = vocab_size
class WordsModel(nn.Module):
    config_class, main_input_name = Settings, "input_ids"
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, 4)
    def forward(self, input_ids):
        return {"logits": self.words(input_ids), "past": (1,)}
class AutoModel:
    from_config = staticmethod(WordsModel)
class AutoConfig:
    pass
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand-ins for torchvision, timm and transformers, first on the path."""
    auto = "transformers/models/auto"
    files = {
        "torchvision/__init__.py": "",
        "torchvision/version.py": "__version__ = '0'",
        "torchvision/models.py": TORCHVISION,
        "timm.py": TIMM,
        "transformers/__init__.py": TRANSFORMERS,
        "transformers/models/__init__.py": "",
        f"{auto}/__init__.py": "",
        f"{auto}/configuration_auto.py": "from transformers import Settings\nCONFIG_MAPPING = {'words': Settings}",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torchvision", "timm", "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torchvision", "timm", "transformers")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["tiny", "torchvision:tiny?channels=5"])
def test_torchvision_by_name_with_options(libraries: Path, name: str) -> None:
    model = build_model(parse_model(name))
    assert model.asked is None
    assert model.out_channels == (5 if "5" in name else 2)
    assert default_inputs(model, 4)[0].text == "4x3x224x224"


def test_random_weights_are_those_of_a_backbone_too(libraries: Path) -> None:
    assert build_model(parse_model("torchvision:detector")).asked is None


OLD = "done: false\ninput_size:\n- 2\n- 3\n- 8\n- 8\nmodel_name: tiny\nweights_name: Tiny_Weights\n"


@pytest.mark.parametrize(("more", "downloads"), [((), 0), (("--weights", "DEFAULT"), 2)])
def test_an_older_campaign_downloads_no_weights_unless_they_are_asked_for(
    libraries: Path, more: tuple[str, ...], downloads: int
) -> None:
    for folder in ("tiny_2_3_8_8", "tiny_2_3_16_16"):  # as create_hw_config_dirs.py copies them
        place = libraries / "measurements" / "A30" / folder / "summary.yml"
        place.parent.mkdir(parents=True)
        place.write_text(OLD.replace("8", "16") if "16" in folder else OLD)
    words = ("ops", "capture", "--config", str(libraries / "measurements" / "A30"), "--gpu", "cpu", *more)
    done = CliRunner().invoke(main, [*words, "-o", str(libraries / "out")])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("DOWNLOADED") == downloads
    made = read_workload(libraries / "out" / "tiny-inference-2x3x16x16.workload.json")
    assert made.settings["weights"] == ("DEFAULT" if more else "random")


@pytest.mark.parametrize("name", ["os:system", "trap:net", "me/model", "tiny?pretrained=True", "../tiny"])
def test_an_older_campaign_names_models_of_torchvision_alone(libraries: Path, name: str) -> None:
    (libraries / "summary.yml").write_text(OLD.replace("tiny", f"'{name}'", 1))
    for more in ((), ("--trust-files",)):
        done = CliRunner().invoke(main, ["ops", "capture", "--config", str(libraries / "summary.yml"), *more])
        assert done.exit_code == 3
        assert f"model_name: '{name}': not a model of torchvision" in done.stderr


@pytest.mark.parametrize("weights", ["IMAGENET1K_V1", "DEFAULT", "Tiny_Weights.IMAGENET1K_V1"])
def test_weights_by_name(libraries: Path, weights: str) -> None:
    assert build_model(parse_model("torchvision:tiny"), weights).asked == weights.rpartition(".")[2]


@pytest.mark.parametrize(
    ("model", "weights", "words"),
    [
        ("torchvision:tony", "random", "no model tony"),
        ("torchvision:tiny", "IMAGENET9", "--weights IMAGENET9"),
        ("timm:vit_tony", "random", "no model vit_tony"),
        ("transformers:wards", "random", "no model wards"),
    ],
)
def test_what_a_library_lacks_is_said_with_what_is_near(libraries: Path, model: str, weights: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        build_model(parse_model(model), weights)
    assert caught.value.hint


def test_timm_tells_its_input_and_takes_tagged_weights(libraries: Path) -> None:
    model = build_model(parse_model("timm:vit_tiny"))
    assert model.asked == ("vit_tiny", False)
    assert default_inputs(model, 2)[0].shape == (2, 3, 10, 10)
    assert build_model(parse_model("timm:vit_tiny.old"), "augreg").asked == ("vit_tiny.augreg", True)


@pytest.mark.parametrize("name", ["words", "WordsModel?vocab_size=7"])
def test_transformers_by_kind_and_by_class(libraries: Path, name: str) -> None:
    model = parse_model(f"transformers:{name}")
    made: Any = build_model(model)
    sizes = default_inputs(made, 2)
    assert sizes[0].text == "2x128:int64"
    (tokens,) = draw_inputs(made, sizes, "cpu")
    assert 0 <= tokens.min() <= tokens.max() < made.config.vocab_size
    found = capture_model(CaptureRequest(model, "training", batch=2), CPU)
    assert {"embedding", "embedding_dense_backward", "nll_loss_forward"} <= {use.key.name for use in found.uses}


def test_torchvision_is_let_in_once(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (libraries / "torchvision" / "version.py").write_text("__version__ = '0.28.0+cu130'")
    kept: list[torch.library.Library] = []
    monkeypatch.setattr(card, "_KEPT", kept)
    monkeypatch.setattr(torch.version, "cuda", None)
    for _ in range(2):
        card.let_torchvision_import()
    assert len(kept) == 1
    kept[0]._destroy()


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match="timm") as caught:
        build_model(parse_model("timm:anything"))
    assert caught.value.hint == "pip install timm"
    with pytest.raises(UsageError, match="no_such_library") as caught:
        build_model(parse_model("no_such_library:anything"))
    assert "pip install" not in str(caught.value.hint)


def test_a_factory_that_fails_is_named() -> None:
    with pytest.raises(InputError, match=r"torch\.nn:Linear: TypeError"):
        build_model(parse_model("torch.nn:Linear"))


def test_initial_weights_are_left_out_only_inside() -> None:
    before = nn.init.kaiming_uniform_
    tensor = torch.full((2, 2), 7.0)
    with without_initial_weights():
        assert nn.init.zeros_(tensor) is tensor
        assert (tensor == 7).all()
    assert nn.init.kaiming_uniform_ is before
    assert (nn.init.zeros_(tensor) == 0).all()


def test_auxiliary_heads_count_less() -> None:
    main, side = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    torch.manual_seed(0)
    together = loss_of((main, side))
    torch.manual_seed(0)
    assert together == loss_of(main) + 0.3 * loss_of(side)
    assert loss_of({"hidden": main, "other": side}).grad_fn is not None
    with pytest.raises(InputError, match="no gradient"):
        loss_of((torch.ones(2), 3))


def test_several_inputs_of_one_call() -> None:
    sizes = parse_inputs("8x128:int64, 8x4:bfloat16,8")
    assert [(size.text, size.dtype) for size in sizes] == [
        ("8x128:int64", torch.int64),
        ("8x4:bfloat16", torch.bfloat16),
        ("8", torch.float32),
    ]
