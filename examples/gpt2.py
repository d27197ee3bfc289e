"""GPT-2: what the README's first command compiles, and a script for a GPU.

No GPU is needed to compile it; the script, run on one, compares it with eager::

    kernelfarm warm examples/gpt2.py:infer examples/gpt2.py:train --target h200
    python examples/gpt2.py
"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

LAYERS, BATCH, LENGTH = 12, 8, 512


def infer() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Return a 12-layer GPT-2 with random weights in bfloat16 on the GPU, and its arguments."""
    model = _model().eval()
    return model, (_tokens(model),)


def train() -> tuple[torch.nn.Module, dict[str, torch.Tensor], str]:
    """Return the same model for training, and tokens with their labels; its output has the loss.

    Dropout is off, so that the losses of compiled steps can be compared with eager's.
    """
    model = _model().train()
    ids = _tokens(model)
    return model, {"input_ids": ids, "labels": ids.clone()}, "train"


def _model() -> torch.nn.Module:
    config = GPT2Config(n_layer=LAYERS, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(config).to(torch.bfloat16).cuda()
    # What it takes anyway; unsaid, its forward warns about that, which cuts Dynamo's graph in two.
    model.loss_type = "ForCausalLM"
    return model


def _tokens(model: torch.nn.Module) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (BATCH, LENGTH), device="cuda")


def main() -> None:
    """Compare inference and training with eager."""
    from comparing import compare

    compare(infer)
    compare(train)


if __name__ == "__main__":
    main()
