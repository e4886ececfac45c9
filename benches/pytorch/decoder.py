"""PyTorch's decoder step, as `cuda-steps --only captured` times candle's: 24 blocks, 1 token, width 1024, f32.

Prints microseconds a step: eager, and captured as a CUDA graph and replayed, each with a synchronisation.
Run it right beside the other one, on the same device: python3 benches/pytorch/decoder.py
"""

import time

import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, VOCABULARY = 24, 1024, 16, 1000
INTERMEDIATE = WIDTH * 11 // 4
HEAD = WIDTH // HEADS


def weight(rows, columns):
    return torch.randn(rows, columns, device="cuda") * 0.02


class Block:
    def __init__(self):
        self.q, self.k, self.v, self.o = (weight(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up = weight(INTERMEDIATE, WIDTH), weight(INTERMEDIATE, WIDTH)
        self.down = weight(WIDTH, INTERMEDIATE)
        self.norm1, self.norm2 = torch.ones(WIDTH, device="cuda"), torch.ones(WIDTH, device="cuda")

    def forward(self, x, cos, sin):
        h = F.rms_norm(x, (WIDTH,), self.norm1, 1e-5)
        split = lambda t: t.view(1, 1, HEADS, HEAD).transpose(1, 2)
        q, k, v = (split(F.linear(h, w)) for w in (self.q, self.k, self.v))
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        scores = torch.softmax(q @ k.transpose(2, 3) / HEAD**0.5, dim=-1)
        mixed = (scores @ v).transpose(1, 2).reshape(1, 1, WIDTH)
        x = x + F.linear(mixed, self.o)
        h = F.rms_norm(x, (WIDTH,), self.norm2, 1e-5)
        return x + F.linear(F.silu(F.linear(h, self.gate)) * F.linear(h, self.up), self.down)


def rope(x, cos, sin):
    one, two = x.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)


@torch.no_grad()
def main():
    blocks = [Block() for _ in range(LAYERS)]
    embedding, head = weight(VOCABULARY, WIDTH), weight(VOCABULARY, WIDTH)
    norm = torch.ones(WIDTH, device="cuda")
    cos, sin = torch.ones(HEAD // 2, device="cuda"), torch.zeros(HEAD // 2, device="cuda")
    tokens = torch.zeros(1, 1, dtype=torch.long, device="cuda")

    def forward():
        x = F.embedding(tokens, embedding)
        for block in blocks:
            x = block.forward(x, cos, sin)
        return F.linear(F.rms_norm(x, (WIDTH,), norm, 1e-5)[:, -1], head)

    def timed(run, steps=50, turns=7):
        times = []
        for _ in range(turns):
            run()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                run()
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / steps * 1e6)
        return sorted(times)[turns // 2]

    for _ in range(3):
        forward()
    eager = timed(forward)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    print(f"PyTorch {torch.__version__}: eager {eager:.0f} us, CUDA graph {timed(graph.replay):.0f} us")


main()
