"""Captures named models on a simulated GPU, and calls every captured operator: seconds, operators, failures.

    python bench/operators/ops_capture.py --out bench/operators/results/cpu/ops_capture.json

Needs torchvision and transformers, no GPU. The processor's seconds are this process's alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment

from gpuledger.errors import GpuLedgerError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.workloads.capture import Capture
from gpuledger.ops.workloads.captures import CapturedDevice, CaptureRequest, capture_model, device_named
from gpuledger.ops.workloads.models import parse_model
from gpuledger.ops.workloads.rebuild import rebuild
from gpuledger.ops.workloads.steps import parse_inputs

MODELS = [
    "torchvision:resnet50",
    "torchvision:densenet121",
    "torchvision:efficientnet_b0",
    "torchvision:convnext_base",
    "torchvision:googlenet",
    "torchvision:shufflenet_v2_x1_0",
    "torchvision:mobilenet_v3_large",
    "torchvision:vit_b_16",
    "torchvision:swin_t",
    "transformers:BertForSequenceClassification",
    "transformers:GPT2LMHeadModel",
    "transformers:LlamaForCausalLM?num_hidden_layers=4",
    "timm:vit_base_patch16_224",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--modes", nargs="+", default=["inference", "training"])
    parser.add_argument("--input", help="sizes as `gpuledger ops capture --input` takes them")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    capture_model(
        CaptureRequest(parse_model("torch.nn:Linear?in_features=2&out_features=2"), inputs=parse_inputs("2x2")), "h200"
    )
    rows = [capture_one(name, mode, asked) for name in asked.models for mode in asked.modes]
    report = {"environment": describe_environment("cpu"), "gpu": asked.gpu, "batch": asked.batch, "captures": rows}
    text = json.dumps(report, indent=1)
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return 0


def capture_one(name: str, mode: Any, asked: argparse.Namespace) -> dict[str, Any]:
    wall_s, processor_s = time.perf_counter(), time.process_time()
    inputs = parse_inputs(asked.input) if asked.input else ()
    try:
        workload = capture_model(
            CaptureRequest(parse_model(name), mode, asked.batch, inputs, optimizer="adamw"), asked.gpu
        )
    except GpuLedgerError as error:
        print(name, mode, error, file=sys.stderr)
        return {"model": name, "mode": mode, "error": str(error)}
    row = {
        "model": name,
        "mode": mode,
        "wall_s": round(time.perf_counter() - wall_s, 2),
        "processor_s": round(time.process_time() - processor_s, 2),
        "distinct_operators": len(workload.uses),
        "calls": workload.calls,
        "distinct_layers": len(workload.layers),
        "notes": workload.settings["notes"],
    }
    with device_named(asked.gpu, lambda _: None) as place:
        wrong = [text for use in workload.uses if (text := rebuilt(use.key, place))]
    print(name, mode, row["processor_s"], "s,", len(workload.uses), "operators,", len(wrong), "wrong", file=sys.stderr)
    return {**row, "not_rebuilt": wrong}


def rebuilt(key: OperatorKey, place: CapturedDevice) -> str:
    """Return what is wrong with a key's call: nothing where it is captured as the same key again."""
    capture = Capture(place.holds, place.device)
    try:
        call = rebuild(key, place.device)
        with capture:
            call()
    except Exception as error:
        return f"{key.text}: {type(error).__name__}: {error}"
    found = [use.key for use in capture.tally.uses]
    same = len(found) == 1 and (found[0].operator, found[0].inputs) == (key.operator, key.inputs)
    return "" if same else f"{key.text}: became {[one.text for one in found]}"


if __name__ == "__main__":
    sys.exit(main())
