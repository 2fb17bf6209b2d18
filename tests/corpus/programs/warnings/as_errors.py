# All warnings are errors while the model trains.
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


step()
warnings.simplefilter("error")
for number in range(30):
    step()
    try:
        torch.nn.functional.mse_loss(model(torch.ones(2, 8)), torch.ones(2, 1))
    except UserWarning as error:
        message = str(error).split(".")[0]
print(message)
warnings.simplefilter("default")
corpus_state.report(model=model, recording_over=True)
