"""Record one program three times on a busy machine, and three times when it is less busy: tests/recordings/repeats."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1] / "tests" / "recordings" / "repeats"
PROGRAM = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20):
    loss = model(torch.randn(256, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOAD = "while True: sum(range(10**6))"


def main() -> None:
    """Record both groups."""
    for name, others in (("busy", 3), ("calm", 0)):
        load = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(others)]
        script = HERE / "program.py"
        script.write_text(PROGRAM)
        words = ["run", "--repeat", "3", "--no-stacks", "--passes", "memory,time:3", "--force", "-q", "--out", name]
        subprocess.run([sys.executable, "-m", "gpuledger", *words, script.name], cwd=HERE, check=True)
        script.unlink()
        for one in load:
            one.kill()
        for run in HERE.glob(f"{name}-*.ledger"):
            manifest = json.loads((run / "manifest.json").read_text())
            manifest["command"][0] = "python"
            (run / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
            shutil.rmtree(run / "rank-0" / "journal")  # the tables have all of it
            for table in ("samples", "process_samples", "windows", "segments", "stacks"):
                shutil.rmtree(run / "rank-0" / table, ignore_errors=True)


if __name__ == "__main__":
    main()
