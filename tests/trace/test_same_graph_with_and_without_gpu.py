"""A trace without a GPU gives the keys that torch.compile gives with one, on the same torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Prints {model: [digest of graph.nodes and graph.inputs]}, traced on fakes or compiled for real.
PROGRAM = """
import hashlib, json, os, sys
import torch, torch.nn.functional as F
from torch import nn
from kernelfarm.compiler.graph_key import graph_key_parts
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain
from kernelfarm.compiler.trace.dynamo import compile_fx
from kernelfarm.compiler.trace.fake import trace_for

live = sys.argv[1] == "live"
target = Target.parse("h200")
toolchain = Toolchain("release", ())
found, name = {}, ""


def keep(gm, inputs, info):
    parts = dict(
        graph_key_parts(
            gm, inputs, target=target, toolchain=toolchain, info=info, sources_digest="ours"
        )
    )
    if os.environ.get("SHOW_GRAPHS"):
        print(name, info.kind, parts["graph.inputs"].decode(), file=sys.stderr)
        print(parts["graph.nodes"].decode(), file=sys.stderr)
    digest = hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()
    found.setdefault(name, []).append(digest)
    return lambda args: list(gm(*args))


class Block(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.qkv, self.norm, self.causal = nn.Linear(64, 192), nn.LayerNorm(64), causal

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.view(2, 16, 4, 16).transpose(1, 2) for t in parts)
        mask = None if self.causal else x.sum(-1)[:, None, None, :] > 0
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        out = out.transpose(1, 2)
        out = out.view(2, 16, 64) if self.causal else out.flatten(2)
        return F.dropout(F.gelu(out), 0.1, self.training) * torch.tensor(0.5, device=x.device)


class Mixed(Block):
    def forward(self, x):
        with torch.autocast("cuda", torch.bfloat16):
            return super().forward(x)


def mixed():
    return Mixed(True).cuda().train(), (torch.randn(2, 16, 64, device="cuda"),), "train"


def attention(causal, dtype, mode):
    def function():
        model = Block(causal).to("cuda", dtype).train(mode == "train")
        return model, (torch.randn(2, 16, 64, device="cuda", dtype=dtype),), mode
    return function


def convolution(layout, mode):
    def function():
        model = nn.Sequential(
            nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, groups=16), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10),
        ).cuda().to(memory_format=layout).train(mode == "train")
        x = torch.randn(2, 8, 12, 12, device="cuda").to(memory_format=layout)
        return model, (x,), mode
    return function


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.depthwise, self.point = nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.Conv2d(32, 32, 1)
        self.gate, self.group = nn.Conv2d(32, 32, 1), nn.GroupNorm(4, 32)
        self.up, self.instance = nn.ConvTranspose2d(32, 32, 2, 2), nn.InstanceNorm2d(32)
        self.last = nn.Conv2d(64, 16, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        y = F.silu(self.group(self.point(self.depthwise(x))))
        y = y * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(y, 1)))
        y = torch.cat([self.instance(self.up(y)), F.interpolate(x, scale_factor=2)], 1)
        return self.last(F.avg_pool2d(y, 2, 1)), y


class Both(Image):
    def forward(self, x):
        y, z = super().forward(x)
        return y.flatten(1).sum() + z.mean()


def image(dtype, mode, batch):
    def function():
        model = (Both() if mode == "train" else Image()).to("cuda", dtype).train(mode == "train")
        return model, (torch.randn(batch, 3, 32, 32, device="cuda", dtype=dtype),), mode
    return function


def volume():
    model = nn.Sequential(nn.Conv3d(16, 32, 3), nn.BatchNorm3d(32), nn.ReLU(), nn.Conv3d(32, 16, 1))
    return model.cuda().train(), (torch.randn(2, 16, 5, 6, 7, device="cuda"),), "train"


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, use_cache=False)).cuda().bfloat16().eval()
    return model, (torch.randint(0, 50257, (8, 512), device="cuda"),)


models = {"gpt2": gpt2, "mixed": mixed, "volume": volume}
for mode in ("infer", "train"):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for batch in (1, 4):
            models[f"image {mode} {dtype} {batch}"] = image(dtype, mode, batch)
    for dtype in (torch.float32, torch.bfloat16):
        for causal in (True, False):
            models[f"attention {mode} {dtype} {causal}"] = attention(causal, dtype, mode)
    for layout in (torch.contiguous_format, torch.channels_last):
        models[f"convolution {mode} {layout}"] = convolution(layout, mode)

for name, function in models.items():
    if not live:
        trace_for(function, target, compile_graph=keep)
        continue
    torch._dynamo.reset()
    model, args, *mode = function()
    backend = lambda gm, inputs: compile_fx(gm, inputs, compile_graph=keep, target=target)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    if mode == ["train"]:
        compiled(*args).sum().backward()
    else:
        with torch.no_grad():
            compiled(*args)
print(json.dumps(found))
"""


def _keys(how: str, directory: Path, **environment: str) -> dict[str, list[str]]:
    program = directory / "keys.py"
    program.write_text(PROGRAM)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(program), how],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    keys: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return keys


@pytest.mark.slow
def test_two_processes_give_the_same_keys(tmp_path: Path) -> None:
    """Nothing of a process gets into a key: not its hash seed, not its directory, not its noise."""
    first = _keys("fake", tmp_path, PYTHONHASHSEED="1", CUDA_VISIBLE_DEVICES="")
    other = tmp_path / "elsewhere"
    other.mkdir()
    noise = {"SLURM_JOB_ID": "7", "MASTER_PORT": "29501"}
    assert _keys("fake", other, PYTHONHASHSEED="2", CUDA_VISIBLE_DEVICES="", **noise) == first


@pytest.mark.gpu
@pytest.mark.slow
def test_a_trace_without_a_gpu_has_the_keys_of_a_run_with_one(tmp_path: Path) -> None:
    """Warming on a machine without a GPU serves the run on the GPU, model by model."""
    without = _keys("fake", tmp_path, CUDA_VISIBLE_DEVICES="")
    live = _keys("live", tmp_path)
    beside = _keys("fake", tmp_path)
    assert {name for name in live if live[name] != without[name]} == set()
    assert {name for name in live if live[name] != beside[name]} == set()
