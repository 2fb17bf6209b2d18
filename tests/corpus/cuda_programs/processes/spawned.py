"""A spawned child trains on the GPU, and doubles a tensor that its parent shares with it."""

import corpus_state
import torch
import torch.multiprocessing as mp


def train(label: str, steps: int) -> float:
    torch.manual_seed(57)
    model = torch.nn.Linear(128, 128).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(64, 128, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    corpus_state.report(label, model=model)
    return loss.item()


def work(shared: torch.Tensor, answers: mp.Queue) -> None:
    shared.mul_(2)
    torch.cuda.synchronize()
    answers.put(train("child", 20))


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    shared, answers = torch.ones(1000, device="cuda"), spawn.Queue()
    child = spawn.Process(target=work, args=(shared, answers))
    child.start()
    theirs = answers.get(timeout=60)
    child.join()
    print(child.exitcode, shared.sum().item(), theirs == train("parent", 20))
