"""ResNet-50 (He et al. 2016), whose weights have torchvision's names and shapes; trained for some steps on random images.

python examples/resnet.py --device cpu --steps 3
python examples/resnet.py --device cuda --size 224 --batch 64 --width 64 --depths 3 4 6 3
aicf explain examples/resnet.py --device h200 --mode train
"""

import argparse

import numpy as np

import aicf
from aicf import nn

DEPTHS = (3, 4, 6, 3)  # blocks of each stage


class Bottleneck(nn.Layer):
    """x + what a narrow 3x3 convolution makes of it; 1x1 convolutions go down to its width and up again."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(skip, nn.BatchNorm2d(outputs))

    def emit(self, ctx, x):
        y = ctx.relu(self.bn1(self.conv1(x)))
        y = ctx.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return ctx.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Layer):
    def __init__(self, width: int = 64, depths: tuple[int, ...] = DEPTHS, classes: int = 1000) -> None:
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.maxpool, self.stages, inputs = nn.MaxPool2d(3, 2, 1), [], width
        for stage, depth in enumerate(depths, 1):
            narrow = width * 2 ** (stage - 1)
            strides = [1 if stage == 1 else 2] + [1] * (depth - 1)
            blocks = [
                Bottleneck(4 * narrow if n else inputs, narrow, stride) for n, stride in enumerate(strides)
            ]
            inputs = 4 * narrow
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
            self.stages.append(f"layer{stage}")
        self.avgpool, self.flatten, self.fc = (
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(inputs, classes),
        )

    def emit(self, ctx, x):
        x = self.maxpool(ctx.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return self.fc(self.flatten(self.avgpool(x)))


def build(batch: int = 32, size: int = 224, width: int = 64, depths=DEPTHS, classes: int = 1000) -> nn.Model:
    images = {"x": aicf.TensorSpec(("batch", 3, size, size))}
    return nn.Model(images, ResNet(width, tuple(depths), classes), batch=batch)


def loss() -> nn.Loss:
    return nn.SoftmaxCrossEntropy()


def optimizer(rate: float = 0.1) -> nn.Optimizer:
    exempt = nn.ParamGroup(use=("bias", "norm"), weight_decay=0.0)
    return nn.SGD(rate, momentum=0.9, weight_decay=1e-4, groups=[exempt])


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--device", help="cpu, cuda, or whatever is there")
    ask.add_argument("--steps", type=int, default=5)
    ask.add_argument("--batch", type=int, default=8)
    ask.add_argument("--size", type=int, default=32, help="of an image's sides")
    ask.add_argument("--width", type=int, default=8, help="channels of the first stage; ResNet-50 has 64")
    ask.add_argument("--depths", type=int, nargs=4, default=[1, 1, 1, 1], help="ResNet-50 has 3 4 6 3")
    ask.add_argument("--policy", default="f32", help="f32, bf16 or f16")
    args = ask.parse_args()
    model = build(args.batch, args.size, args.width, args.depths, classes=10)
    train = aicf.compile(
        model, "train", device=args.device, loss=loss(), optimizer=optimizer(0.02), policy=args.policy
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((args.batch, 3, args.size, args.size), np.float32)
    y = rng.integers(0, 10, args.batch)
    for step in range(args.steps):
        print(f"step {step + 1}: loss {float(train({'x': x, 'y': y})['loss']):.4f}")


if __name__ == "__main__":
    main()
