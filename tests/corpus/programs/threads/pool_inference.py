# A pool of threads answers requests with one model.
from concurrent.futures import ThreadPoolExecutor

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
requests = [torch.randn(2, 8) for _ in range(60)]


@torch.inference_mode()
def answer(request):
    return model(request).sum().item()


with ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(answer, requests))
print([f"{one:.6f}" for one in answers])
corpus_state.report(model=model)
