# A model that only answers, with dropout switched off and on.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.insert(1, torch.nn.Dropout(0.5))
total = 0.0
with torch.no_grad():
    for number in range(40):
        model.train(number % 5 == 0)
        total += model(torch.randn(4, 8)).sum().item()
print(f"{total:.6f}")
corpus_state.report(model=model)
