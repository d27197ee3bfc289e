"""GPT-2 inference: what the README's first command compiles, and a script for a GPU.

No GPU is needed to compile it; a script run on one compares it with eager::

    kernelfarm warm examples/gpt2.py:infer --target h200
    python examples/gpt2.py
"""

from __future__ import annotations

import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, LENGTH = 8, 512


def infer() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Return a 12-layer GPT-2 with random weights in bfloat16 on the GPU, and its arguments."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=12, use_cache=False)).eval()
    model = model.to(torch.bfloat16).cuda()
    ids = torch.randint(0, model.config.vocab_size, (BATCH, LENGTH), device="cuda")
    return model, (ids,)


def main() -> None:
    """Run the model eagerly and compiled, and print how far apart they are and how fast."""
    torch.manual_seed(0)
    model, args = infer()
    compiled = torch.compile(model, backend="kernelfarm")
    with torch.no_grad():
        started = time.perf_counter()
        got = compiled(*args).logits
        torch.cuda.synchronize()
        print(f"first call: {time.perf_counter() - started:.2f} s")
        expected = model(*args).logits
    print(f"largest difference from eager: {(got - expected).abs().max().item():.4f}")


if __name__ == "__main__":
    main()
