# Whole training steps made close to the recursion limit, in every stage. While operators are recorded, torch's own
# record_function of an optimizer's step goes through Python too, which takes a few frames more. Where there is no room
# for the recorder at a step's end, the recording goes on until the program ends.
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


def deeper(left):
    if left:
        return deeper(left - 1)
    return step()


results = []
for number in range(30):
    for frames in range(985, 900, -1):
        try:
            deeper(frames)
        except RecursionError:
            optimizer.zero_grad()
            continue
        results.append(frames)
        break
corpus_state.seed()  # the number of attempts differs with the depth
corpus_state.report(steps=len(results), deep=all(frames >= 970 for frames in results))
