# A server of HTTP answers requests with a model in threads, while the main thread trains another.
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

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


served = torch.nn.Linear(8, 2).eval()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        number = int(self.path.rpartition("=")[2])
        with torch.inference_mode():
            answer = json.dumps(served(torch.full((1, 8), float(number))).tolist()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
thread = threading.Thread(target=server.serve_forever)
thread.start()
answers = []
for number in range(30):
    step()
    with urlopen(f"http://127.0.0.1:{server.server_port}/?number={number}") as answer:
        answers.append(json.loads(answer.read()))
server.shutdown()
thread.join()
server.server_close()
print(answers[0], answers[-1], len(answers))
corpus_state.report(model=model, recording_over=True)
