"""Trains a Llama-shaped model with a stage of DeepSpeed's ZeRO; each rank writes its losses and the allocator's peaks.

Usage: torchrun --nproc_per_node 2 deepspeed_train.py STAGE OUT   # writes OUT.RANK.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

STEPS, BATCH, LENGTH, WORDS = 12, 2, 1024, 32000


def main() -> None:
    stage, out, rank = int(sys.argv[1]), sys.argv[2], int(os.environ["RANK"])
    torch.manual_seed(0)
    torch.cuda.set_device(rank)
    deepspeed.init_distributed()
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": BATCH, "bf16": {"enabled": True}}
    config |= {"zero_optimization": {"stage": stage}}
    config |= {"zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    torch.manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        words = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
        loss = engine(input_ids=words, labels=words).loss
        engine.backward(loss)
        engine.step()
        losses.append(round(loss.item(), 4))
    torch.cuda.synchronize()
    peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    Path(f"{out}.{rank}.json").write_text(json.dumps({"losses": losses, **peaks}), encoding="utf-8")


if __name__ == "__main__":
    main()
