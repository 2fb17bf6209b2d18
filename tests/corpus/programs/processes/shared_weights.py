# torch.multiprocessing: two processes train weights in shared memory, after each other.
# alone: yes
import corpus_state
import torch
import torch.multiprocessing as multiprocessing


def train(model):
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()


if __name__ == "__main__":
    corpus_state.seed()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model.share_memory()
    for _ in range(2):
        process = multiprocessing.get_context("fork").Process(target=train, args=(model,))
        process.start()
        process.join()
        print(process.exitcode)
    corpus_state.report(model=model)
