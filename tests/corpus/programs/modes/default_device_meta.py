# Some models are made on the meta device, by a default device and by a context, between the steps.
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


for number in range(30):
    step()
    with torch.device("meta"):
        big = torch.nn.Linear(1 << 16, 1 << 16)
    big(torch.empty(2, 1 << 16, device="meta"))
    torch.set_default_device("meta" if number == 4 else None)
    print(torch.empty(1).device, big.weight.device)
    torch.set_default_device(None)
corpus_state.report(model=model, recording_over=True)
