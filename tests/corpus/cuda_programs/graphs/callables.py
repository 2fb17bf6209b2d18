"""Two modules of a model are made graphed callables; the model trains with them."""

import corpus_state
import torch

torch.manual_seed(8)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU())
        self.second = torch.nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


model = Model().cuda()
x = torch.randn(32, 128, device="cuda")
hidden = torch.randn(32, 256, device="cuda", requires_grad=True)
model.first, model.second = torch.cuda.make_graphed_callables((model.first, model.second), ((x,), (hidden,)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(40):
    optimizer.zero_grad(set_to_none=True)
    loss = model(torch.randn(32, 128, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
corpus_state.report(model=model)
