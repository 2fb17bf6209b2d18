# Modules and inputs whose repr, str and iteration count and print.
import corpus_state
import torch


class Chatty(torch.nn.Linear):
    def __repr__(self):
        print("repr")
        return "Chatty"

    def __iter__(self):
        print("iter")
        return iter(())

    def _get_name(self):
        print("name")
        return "Chatty"

    def extra_repr(self):
        print("extra")
        return ""

    def __dir__(self):
        print("dir")
        return []


corpus_state.seed()
model = torch.nn.Sequential(Chatty(8, 8), Chatty(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(str(model))
corpus_state.report(model=model, recording_over=True)
