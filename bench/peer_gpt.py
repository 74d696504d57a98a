#!/usr/bin/env python3
"""The model of the recipe gpt in eager PyTorch: pre-norm, tanh GELU, learned positions, biases, tied head; its training
step (forward, backward, AdamW). A step for every line on stdin, answered by its CPU and wall seconds.

usage: bench/peer_gpt.py [--threads N] [--fused] [--clip]
"""
import argparse
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WIDTH, DEPTH, HEADS, LANES, LENGTH, VOCABULARY = 384, 6, 6, 8, 512, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_feed = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        lanes, length, _ = x.shape
        qkv = self.qkv(self.before_attention(x)).view(lanes, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(lanes, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.before_feed(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.token.weight)


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fused", action="store_true", help="AdamW(fused=True) instead of the standard one")
    parser.add_argument("--clip", action="store_true", help="clip the gradient's norm, as the trainer does")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Gpt()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=options.fused or None)
    tokens = torch.randint(0, VOCABULARY, (LANES, LENGTH))
    target = torch.randint(0, VOCABULARY, (LANES, LENGTH))
    print(f"peer: {sum(p.numel() for p in model.parameters())} parameters", file=sys.stderr)
    for _ in sys.stdin:
        cpu_before, wall_before = cpu(), time.perf_counter()
        loss = functional.cross_entropy(model(tokens).reshape(-1, VOCABULARY), target.view(-1))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if options.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        loss.item()
        print(f"{cpu() - cpu_before:.6f} {time.perf_counter() - wall_before:.6f}", flush=True)


if __name__ == "__main__":
    main()
