"""A small Llama (8 layers, grouped attention heads), for inference and training.

No GPU is needed to compile it; the script, run on one, compares it with eager::

    kernelfarm warm examples/llama.py:infer examples/llama.py:train --target h200
    python examples/llama.py
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS, BATCH, LENGTH = 8, 4, 1024


def infer() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Return the model with random weights in bfloat16 on the GPU, and its arguments."""
    model = _model().eval()
    return model, (_tokens(model),)


def train() -> tuple[torch.nn.Module, dict[str, torch.Tensor], str]:
    """Return the same model for training, and tokens with their labels; its output has the loss."""
    model = _model().train()
    ids = _tokens(model)
    return model, {"input_ids": ids, "labels": ids.clone()}, "train"


def _model() -> torch.nn.Module:
    config = LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=1024,
        num_attention_heads=16,
        num_key_value_heads=8,
        intermediate_size=2816,
        vocab_size=32000,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).cuda()


def _tokens(model: torch.nn.Module) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (BATCH, LENGTH), device="cuda")


def main() -> None:
    """Compare inference and training with eager."""
    from comparing import compare

    compare(infer)
    compare(train)


if __name__ == "__main__":
    main()
