# Complex parameters, sparse layouts, nested and quantized tensors pass through modules.
import corpus_state
import torch


class Spectral(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)


class Through(torch.nn.Module):
    def forward(self, *tensors):
        return tensors


corpus_state.seed()
model = torch.nn.Sequential(Spectral(), torch.nn.Linear(8, 4))
optimizer = torch.optim.Adam(model.parameters())


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


through = Through()
for _ in range(30):
    step()
    sparse = torch.eye(4).to_sparse()
    kinds = through(
        sparse,
        sparse.to_sparse_csr(),
        torch.view_as_complex(torch.ones(2, 2)).conj(),
        torch._neg_view(torch.ones(2)),
        torch.empty(0),
        torch.tensor(1),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        torch.ones(1).expand(9),
    )
print([str(one.layout) for one in kinds])
corpus_state.report(model=model, recording_over=True)
