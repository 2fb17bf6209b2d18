# torch.save and load of model and state, to files and buffers, in every stage.
import io

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
    if number in (0, 2, 4, 8, 14, 20):
        torch.save(model.state_dict(), f"state-{number}.pt")
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        again = torch.load(buffer, weights_only=False)
        print(number, buffer.getbuffer().nbytes, torch.equal(again(torch.ones(1, 8)), model(torch.ones(1, 8))))
        model.load_state_dict(torch.load(f"state-{number}.pt", weights_only=True))
corpus_state.report(model=model, recording_over=True)
