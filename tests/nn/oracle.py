"""An MLP, its losses, its gradients and its optimizers in NumPy float64. Shares no code with aicf."""

from __future__ import annotations

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])
C = math.sqrt(2 / math.pi)


def _gelu_slope(x):
    t = np.tanh(C * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * C * (1 + 3 * 0.044715 * x * x)


# activation -> (function of x, derivative at x)
ACTIVATIONS = {
    "identity": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(float)),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), lambda x: np.where(x > 0, 1.0, 0.01)),
    "gelu": (lambda x: 0.5 * x * (1 + np.tanh(C * (x + 0.044715 * x**3))), _gelu_slope),
    "gelu_erf": (
        lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
        lambda x: 0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    ),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
}


class MLP:
    """Linear layers with an activation between each two. `params` is {name: float64 array}; w has shape (out, in)."""

    def __init__(self, params: dict[str, np.ndarray], activation: str, loss: str = "cross_entropy") -> None:
        self.params = {k: np.asarray(v, np.float64) for k, v in params.items()}
        self.names = sorted({k.split(".")[0] for k in params}, key=int)
        self.activation, self.loss = activation, loss

    def forward(self, x: np.ndarray) -> np.ndarray:
        f = ACTIVATIONS[self.activation][0]
        h = np.asarray(x, np.float64)
        self.inputs, self.pre = [], []
        for name in self.names:
            self.inputs.append(h)
            z = h @ self.params[f"{name}.weight"].T + self.params.get(f"{name}.bias", 0.0)
            self.pre.append(z)
            h = z if name == self.names[-1] else f(z)
        return h

    def loss_of(self, out: np.ndarray, y: np.ndarray) -> float:
        if self.loss == "mse":
            return float(np.mean((out - y) ** 2))
        shifted = out - out.max(1, keepdims=True)
        return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(y)), y]))

    def step(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, dict[str, np.ndarray]]:
        """(loss, output, gradients)"""
        out = self.forward(x)
        loss = self.loss_of(out, y)
        if self.loss == "mse":
            g = 2 * (out - y) / out.size
        else:
            p = np.exp(out - out.max(1, keepdims=True))
            g = p / p.sum(1, keepdims=True)
            g[np.arange(len(y)), y] -= 1
            g /= len(y)
        slope, grads = ACTIVATIONS[self.activation][1], {}
        for i in reversed(range(len(self.names))):
            name = self.names[i]
            if i < len(self.names) - 1:
                g = g * slope(self.pre[i])
            grads[f"{name}.weight"] = g.T @ self.inputs[i]
            if f"{name}.bias" in self.params:
                grads[f"{name}.bias"] = g.sum(0)
            g = g @ self.params[f"{name}.weight"]
        return loss, out, grads


class SGD:
    def __init__(self, lr, momentum=0.0, weight_decay=0.0, nesterov=False):
        self.lr, self.momentum, self.decay, self.nesterov, self.v = lr, momentum, weight_decay, nesterov, {}

    def update(self, params, grads):
        for name, p in params.items():
            g = grads[name] + self.decay * p
            v = self.v[name] = self.momentum * self.v.get(name, 0.0) + g
            params[name] = p - self.lr * (g + self.momentum * v if self.nesterov else v)


class Adam:
    def __init__(self, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False):
        self.lr, (self.b1, self.b2), self.eps, self.decay, self.decoupled = (
            lr,
            betas,
            eps,
            weight_decay,
            decoupled,
        )
        self.t, self.m, self.v = 0, {}, {}

    def update(self, params, grads):
        self.t += 1
        for name, p in params.items():
            g = grads[name] + (0.0 if self.decoupled else self.decay * p)
            p = p - (self.lr * self.decay * p if self.decoupled else 0.0)
            m = self.m[name] = self.b1 * self.m.get(name, 0.0) + (1 - self.b1) * g
            v = self.v[name] = self.b2 * self.v.get(name, 0.0) + (1 - self.b2) * g * g
            params[name] = p - self.lr * (m / (1 - self.b1**self.t)) / (
                np.sqrt(v / (1 - self.b2**self.t)) + self.eps
            )


def clipped(grads: dict[str, np.ndarray], max_norm: float) -> dict[str, np.ndarray]:
    norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
    scale = min(1.0, max_norm / (norm + 1e-6))
    return {k: g * scale for k, g in grads.items()}
