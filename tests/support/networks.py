"""Small convolution networks of every family, with the shapes of their inputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

_SPEC = importlib.util.spec_from_file_location(
    "resnet50_example", Path(__file__).parents[2] / "examples" / "resnet50.py"
)
resnet50 = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(resnet50)


def conv_norm(inputs, outputs, kernel=3, **options):
    options.setdefault("padding", kernel // 2)
    conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class UNet(nn.Module):
    """Down by pooling, up by a transposed convolution, joined with what went down."""

    def __init__(self):
        super().__init__()
        self.first = conv_norm(3, 16)
        self.deep = conv_norm(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = nn.Conv2d(32, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        a = F.relu(self.first(x))
        b = F.relu(self.deep(F.max_pool2d(a, 2)))
        c = F.silu(self.last(torch.cat([a, self.up(b)], 1)))
        return self.head(c), c


class MobileNet(nn.Module):
    """Wide 1 x 1, depthwise 3 x 3, a gate from the mean of the image, narrow 1 x 1."""

    def __init__(self):
        super().__init__()
        self.stem = conv_norm(3, 16, stride=2)
        self.wide = conv_norm(16, 32, 1)
        self.depthwise = conv_norm(32, 32, groups=32)
        self.gate_in, self.gate_out = nn.Conv2d(32, 16, 1), nn.Conv2d(16, 32, 1)
        self.narrow = conv_norm(32, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = F.hardswish(self.stem(x))
        y = F.relu6(self.depthwise(F.relu6(self.wide(x), inplace=True)))
        gate = F.adaptive_avg_pool2d(y, 1)
        y = y * torch.sigmoid(self.gate_out(F.relu(self.gate_in(gate))))
        x = x + self.narrow(y)
        return self.head(x.mean((2, 3)))


class Generator(nn.Module):
    """Transposed convolutions from one pixel up."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
            nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
            nn.Upsample(scale_factor=2), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


class Volume(nn.Module):
    """3D convolutions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm3d(16)
        self.second = nn.Conv3d(16, 16, (1, 3, 3), stride=(1, 2, 2))

    def forward(self, x):
        return self.second(F.relu(self.norm(self.first(x))))


class Grouped(nn.Module):
    """Groups of several channels: the whole graph keeps its layout."""

    def __init__(self):
        super().__init__()
        self.first, self.second = conv_norm(16, 32), conv_norm(32, 32, groups=4)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))))


class Encoder(nn.Module):
    """Group norms, upsampling, residual additions and attention over the pixels."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32)
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.qkv, self.out = nn.Conv2d(32, 96, 1), nn.Conv2d(32, 32, 1)

    def forward(self, x):
        x = self.first(x)
        x = x + self.second(F.silu(self.norm(x)))
        q, k, v = self.qkv(x).flatten(2).chunk(3, 1)
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2)[:, None] for t in (q, k, v)))
        y = y[:, 0].transpose(1, 2).reshape(x.shape)
        return F.interpolate(x + self.out(y), scale_factor=2.0, mode="nearest")


class Reshaped(nn.Module):
    """Every way to look at an image that depends on its layout, and writes through one of them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.line = nn.Conv1d(16, 16, 3)

    def forward(self, x):
        y = self.conv(x)
        flat = y.view(y.shape[0], -1)
        flat.mul_(2.0)  # y too
        pixels = y.permute(0, 2, 3, 1).reshape(y.shape[0], -1, 16)
        pixels.add_(1.0)  # y not
        part = torch.as_strided(y, (2, 3), (7, 1), 5)
        lines = self.line(y.flatten(2))
        return (
            y,
            flat.sum(1),
            pixels,
            part * 1.0,
            lines,
            y[:, 3:9].transpose(2, 3),
            y.unfold(3, 2, 1),
        )


IMAGE, DEEP = (2, 3, 16, 16), (2, 16, 9, 7)
NETWORKS = {
    "resnet": (lambda: resnet50.ResNet((1, 1), 16, 10), (2, 3, 32, 32)),
    "one image": (lambda: resnet50.ResNet((1, 1), 16, 10), (1, 3, 33, 39)),
    "unet": (UNet, IMAGE),
    "mobilenet": (MobileNet, IMAGE),
    "generator": (Generator, (3, 16, 1, 1)),
    "volume": (Volume, (2, 16, 3, 6, 5)),
    "grouped": (Grouped, DEEP),
    "encoder": (Encoder, DEEP),
    "reshaped": (Reshaped, DEEP),
}


def network(name):
    """One of `NETWORKS`, with statistics and parameters of batch norms that do something."""
    module = NETWORKS[name][0]()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d):
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
            nn.init.uniform_(layer.weight, -1, 1)
    return module
