# Quantized copies of the model are made in between and used for inference.
import warnings

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


warnings.simplefilter("ignore")
outputs = []
for number in range(24):
    step()
    if number % 6 == 2:
        small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
        with torch.inference_mode():
            outputs.append(tuple(small(torch.ones(2, 8)).shape))
quantized = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8)
sparse = torch.eye(4).to_sparse_csr() @ torch.ones(4, 1)
print(outputs, quantized.int_repr().sum().item() != 0, type(small[0]).__name__, sparse.sum().item())
corpus_state.report(model=model)
