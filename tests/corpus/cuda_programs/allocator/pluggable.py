"""All memory comes from an allocator that the program compiled itself: CUDAPluggableAllocator."""
# needs: cc

import ctypes
import hashlib
import subprocess
from pathlib import Path

import torch

SOURCE = """
#include <stddef.h>
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
static long calls[2];
void *take(ptrdiff_t bytes, int device, void *stream) {
    void *pointer = NULL;
    calls[0]++;
    return cudaMalloc(&pointer, bytes) ? NULL : pointer;
}
void give_back(void *pointer, ptrdiff_t bytes, int device, void *stream) { calls[1]++; cudaFree(pointer); }
long count(int which) { return calls[which]; }
"""
runtime = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line)
Path("own.c").write_text(SOURCE)
subprocess.run(["cc", "-shared", "-fPIC", "-o", "own.so", "own.c", runtime], check=True)
own = torch.cuda.memory.CUDAPluggableAllocator(str(Path("own.so").absolute()), "take", "give_back")
torch.cuda.memory.change_current_allocator(own)
torch.manual_seed(22)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(40):
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
weights = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
library = ctypes.CDLL(str(Path("own.so").absolute()))
library.count.restype = ctypes.c_long
print(f"{loss.item():.6f}", hashlib.sha256(weights).hexdigest(), library.count(0), library.count(1))
