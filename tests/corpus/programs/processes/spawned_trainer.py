# The training runs in a spawned process; the parent only waits.
import multiprocessing

import corpus_state


def train(queue):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    queue.put(model.weight.sum().item())
    corpus_state.report("child", model=model)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=train, args=(queue,), name="trainer")
    process.start()
    print(f"{queue.get():.6f}")
    process.join()
    print(process.exitcode)
