"""ResNet-50 in plain torch.nn, for inference and training.

No GPU is needed to compile it; the script, run on one, compares it with eager::

    kernelfarm warm examples/resnet50.py:infer examples/resnet50.py:train --target h200
    python examples/resnet50.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SIDE, CLASSES = 32, 224, 1000
#: Blocks of each stage.
DEPTHS = (3, 4, 6, 3)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut: narrow, 3 x 3 (which takes the stride), widen."""

    def __init__(self, inputs: int, width: int, stride: int, *, widen: int = 4) -> None:
        super().__init__()
        outputs = width * widen
        self.narrow = _convolution(inputs, width, 1)
        self.middle = _convolution(width, width, 3, stride)
        self.widen = _convolution(width, outputs, 1)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = _convolution(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y = F.relu(self.narrow(x))
        y = F.relu(self.middle(y))
        return F.relu(self.widen(y) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of bottleneck blocks that halve the image, and a linear head.

    ``width`` is that of the first stage; each further one is twice as wide. ``depths`` are the
    blocks of each stage.
    """

    def __init__(
        self, depths: Sequence[int] = DEPTHS, width: int = 64, classes: int = CLASSES
    ) -> None:
        super().__init__()
        self.stem = _convolution(3, width, 7, 2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        blocks: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) to logits (N, classes)."""
        x = self.pool(F.relu(self.stem(x)))
        x = self.blocks(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Classifier(nn.Module):
    """A network and its loss: the mean cross entropy of its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) and class numbers (N,) to a scalar."""
        return F.cross_entropy(self.network(images), labels)


def infer() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Return a ResNet-50 with random weights in float32 on the GPU, and a batch of images."""
    return ResNet().cuda().eval(), (_images(),)


def train() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor], str]:
    """Return the same network for training, with its loss; images and random labels."""
    labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")
    return Classifier(ResNet()).cuda().train(), (_images(), labels), "train"


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    """A convolution without a bias that keeps the image's size (over the stride), normalised."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


def _images() -> torch.Tensor:
    return torch.randn(BATCH, 3, SIDE, SIDE, device="cuda")


def main() -> None:
    """Compare inference and training with eager."""
    from comparing import compare

    compare(infer)
    compare(train)


if __name__ == "__main__":
    main()
