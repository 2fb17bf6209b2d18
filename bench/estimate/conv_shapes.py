"""Lists the convolutions of torchvision's and timm's models and of the estimate's grid, for conv_workspaces.py.

Models are built on torch's meta device and called once, two images at a time: nothing is computed. A training of the
grid is followed by ``gpuledger estimate``, so that its convolutions have the program's own layouts. Models of the two
sets that estimates are judged by (``HELD_OUT``, ``NEW``) are left out of the models' list; the first set's own
convolutions are kept apart, under the name of their training.

With ``--blind``, the list has the trainings of bench/lib/blind_train.py and nothing else. All are held out of fits.

Usage:
    python bench/estimate/conv_shapes.py --out bench/estimate/conv_shapes.npz
    python bench/estimate/conv_shapes.py --blind --out bench/estimate/conv_shapes_blind.npz
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from blind_train import SETS
from grid_train import COMBINATIONS, HELD_OUT
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.simulate.convolutions.convolution_rows import COLUMNS, PLACE, Row, backward_row, forward_row

aten = torch.ops.aten
HERE = Path(__file__).parent
GRID_MODELS = ("resnet50", "vgg16", "vit", "gan", "convnext", "swin", "densenet", "unet")
HELD_OUT_MODELS = ("mobilenet", "efficientnet", "regnet", "deeplab", "mixer", "speech")
JUDGES = (
    "mobilenet_v3_large", "mobilenetv3_large", "efficientnet_b0", "tf_efficientnet_b0", "regnet_y_400mf", "regnety_004",
    "deeplabv3_resnet50", "mixer", "shufflenet", "inception", "googlenet", "mnasnet", "maxvit", "convnext_base",
    "swin_v2", "swinv2", "fcn_", "lraspp", "r3d", "r2plus1d", "mc3", "clip", "whisper", "quantized",
)  # fmt: skip
"""Models, by the start of their names, that must not be in the list: the first twelve and those that come after."""
TIMM = (
    "resnest50d", "res2net50_26w_4s", "resnetrs50", "resnext50_32x4d", "seresnet50", "wide_resnet50_2", "nfnet_f0",
    "eca_nfnet_l0", "hrnet_w18", "dla60", "dla34", "darknet53", "cspdarknet53", "cspresnext50", "vovnet39a",
    "ghostnet_100", "rexnet_100", "mobilevit_s", "mobilevitv2_100", "mobilenetv2_100", "tinynet_a",
    "convmixer_768_32", "convnextv2_tiny", "convnext_pico", "repvgg_b0", "repvit_m1", "fastvit_t8",
    "efficientformer_l1", "edgenext_small", "poolformer_s12", "coatnet_0_rw_224", "xcit_tiny_12_p16_224",
    "pvt_v2_b1", "pit_s_224", "levit_128", "twins_svt_small", "visformer_small", "focalnet_tiny_srf", "davit_tiny",
    "mvitv2_tiny", "nest_tiny", "cait_s24_224", "beit_base_patch16_224", "deit_small_patch16_224",
    "vit_large_patch14_224", "vit_base_patch32_224", "efficientnetv2_rw_s", "regnetz_c16", "regnetx_032",
    "regnetv_040", "selecsls42", "tresnet_m", "dpn68", "xception41", "xception65", "hardcorenas_a", "spnasnet_100",
    "fbnetc_100", "semnasnet_100", "lcnet_100", "ese_vovnet19b_dw", "skresnet18", "gernet_m", "resnetv2_50",
    "bat_resnext26ts", "resnet18d", "resnet26t", "vgg13_bn", "densenet161", "densenetblur121d", "legacy_senet154",
    "nasnetalarge", "pnasnet5large", "tf_efficientnet_lite0", "efficientnet_es", "gcresnet33ts", "cs3darknet_m",
    "crossvit_9_240", "convit_tiny", "starnet_s2", "mambaout_tiny", "rdnet_tiny", "hgnetv2_b1",
    "inception_next_tiny", "tiny_vit_5m_224", "caformer_s18",
)  # fmt: skip
SIZES = {
    "resnet50": (160, 256, 320, 512, 800), "resnet18": (32, 64, 256), "resnet34": (384, 640), "resnet101": (513,),
    "vgg16_bn": (32, 300), "mobilenet_v2": (96, 320), "densenet169": (320,),
}  # fmt: skip
"""Sides of images beside a model's own."""


class Keep(TorchDispatchMode):
    """Keeps the row of every convolution that runs; whether its data want a gradient stands in the last column."""

    def __init__(self, rows: dict[Row, None]) -> None:
        super().__init__()
        self.rows = rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        row = forward_row(args) if func is aten.convolution.default else None
        if row is not None:
            self.rows[(*row, 0, int(args[0].requires_grad))] = None
        return func(*args, **(kwargs or {}))


def models_on_meta() -> Iterator[tuple[str, Callable[[], Any], tuple[int, ...]]]:
    """Yield name, builder and one input's shape of every model that is not to judge by."""
    from gpuledger.simulate.gpu.card import let_torchvision_import

    let_torchvision_import()
    import timm
    from torchvision import models

    for name in (*models.list_models(module=models), *models.list_models(module=models.segmentation)):
        if not name.startswith(JUDGES) and name != "regnet_y_128gf":  # its values take 2.6 GB
            told = models.get_model_weights(name)["DEFAULT"].transforms.keywords
            side = told.get("crop_size", told.get("resize_size", 224))
            extra = {"weights_backbone": None} if "deeplab" in name else {}
            sides = (side,) if name.startswith(("vit", "swin")) else (side, 224, *SIZES.get(name, ()))
            for pixels in dict.fromkeys(sides):
                yield name, partial(models.get_model, name, weights=None, **extra), (3, pixels, pixels)
    for name in TIMM:
        pixels = timm.get_pretrained_cfg(name, allow_unregistered=True)
        yield name, partial(timm.create_model, name, pretrained=False), pixels.input_size if pixels else (3, 224, 224)


def build_on_meta(build: Callable[[], Any]) -> Any:
    """Return a model without values; one whose widths are computed with tensors is built with them first."""
    try:
        with torch.device("meta"):
            return build().train()
    except NotImplementedError:
        return build().train().to("meta")


def list_models() -> dict[str, dict[Row, None]]:
    """Return each model's convolutions, at a batch of two."""
    found: dict[str, dict[Row, None]] = {}
    for name, build, shape in models_on_meta():
        rows = found.setdefault(name, {})
        try:
            model = build_on_meta(build)
            with torch.device("meta"), Keep(rows):
                model(torch.empty(2, *shape))
        except Exception as error:  # one model that cannot be called without values must not cost the others
            print(f"{name}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
        print(name, shape, len(rows), flush=True)
    return found


def list_training(name: str, script: str) -> dict[Row, None]:
    """Return the convolutions of one training of a script in bench/lib, as an estimate meets them."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "rows.json"
        command = [sys.executable, __file__, "--follow", script, name, "--out", str(out)]
        done = subprocess.run(command, check=False)
        if done.returncode or not out.exists():
            print(f"{name}: {done.returncode}", file=sys.stderr)
            return {}
        return {tuple(row): None for row in json.loads(out.read_text(encoding="utf-8"))}


def follow(script: str, name: str, out: Path) -> None:
    """Follow a training on a virtual GPU in this process, and write the rows of its convolutions."""
    from gpuledger.simulate.estimate import child
    from gpuledger.simulate.gpu import kernels, workspaces

    forwards: dict[Row, None] = {}
    backwards: dict[Row, None] = {}
    rule, kernel = workspaces.RULES[aten.convolution.default], kernels.KERNELS[aten.convolution_backward.default]

    def keep_forward(args: Any, kwargs: Any, device: Any) -> Any:
        forwards.setdefault(forward_row(args) or ())
        return rule(args, kwargs, device)

    def keep_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        backwards.setdefault(backward_row(args) or ())
        return kernel(mode, func, args, kwargs)

    workspaces.RULES[aten.convolution.default] = keep_forward
    kernels.KERNELS[aten.convolution_backward.default] = keep_backward
    order = {"card": "h200", "settings": {}, "steps": 2, "run_directory": str(out.with_suffix(".ledger"))}
    Path(order["run_directory"]).mkdir()
    child.follow_program(order, [str(LIB / f"{script}.py"), name])
    answered = {row[: PLACE["gradient_format"]] for row in backwards}
    rows = [*backwards, *((*row, 0, 1) for row in forwards if row not in answered)]
    out.write_text(json.dumps([row for row in rows if len(row) == len(COLUMNS)]), encoding="utf-8")


def list_blind() -> dict[str, dict[Row, None]]:
    """Return the convolutions of each training that was estimated before it ran."""
    lists = {}
    for name in (name for some in SETS.values() for name in some):
        rows = list_training(name, "blind_train")
        print(name, len(rows), flush=True)
        if rows:
            lists[f"held out:{name}"] = rows
    return lists


def main() -> None:
    """Write every list: rows, and the name of what each row is from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "conv_shapes.npz")
    parser.add_argument("--blind", action="store_true", help="only trainings that were estimated before they ran")
    parser.add_argument("--follow", nargs=2, metavar=("SCRIPT", "TRAINING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.follow:
        follow(*arguments.follow, arguments.out)
        return
    if arguments.blind:
        write(arguments.out, list_blind())
        return
    lists: dict[str, dict[Row, None]] = {}
    for kind, models, trainings in (("held out", HELD_OUT_MODELS, HELD_OUT), ("grid", GRID_MODELS, COMBINATIONS)):
        for one in trainings:
            if one.model in models and not one.allocator:
                lists[f"{kind}:{one.name}"] = list_training(one.name, "grid_train")
                print(one.name, len(lists[f"{kind}:{one.name}"]), flush=True)
    lists |= {f"model:{name}": rows for name, rows in list_models().items()}
    write(arguments.out, lists)


def write(out: Path, lists: dict[str, dict[Row, None]]) -> None:
    """Write rows and sources as one compressed file of arrays."""
    sources = [source for source, rows in lists.items() for _ in rows]
    names = sorted(set(sources))
    np.savez_compressed(
        out,
        columns=np.array(COLUMNS),
        sources=np.array(names),
        source=np.array([names.index(source) for source in sources], dtype=np.int32),
        rows=np.array([row for rows in lists.values() for row in rows], dtype=np.int32),
    )


if __name__ == "__main__":
    main()
