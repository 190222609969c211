"""A training step in NumPy, written out: the reference in f64, a peer in f32. Imports nothing of aicf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DECAY, BETAS, EPS = 1e-2, (0.9, 0.999), 1e-8


class NumpyTrainer:
    """Linear layers with ReLU between them, softmax cross entropy, SGD or AdamW."""

    def __init__(
        self, optimizer: str, rate: float, params: Sequence[np.ndarray], dtype: type = np.float64
    ) -> None:
        self.optimizer, self.rate, self.step_count = optimizer, rate, 0
        self.params = [np.array(p, dtype) for p in params]
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in self.params]

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        """Train on one batch; the loss before the step."""
        weights, biases = self.params[::2], self.params[1::2]
        seen = [np.asarray(x, weights[0].dtype)]  # what each layer is given
        for n, (w, b) in enumerate(zip(weights, biases)):
            z = seen[-1] @ w.T + b
            seen.append(np.maximum(z, 0) if n < len(weights) - 1 else z)
        logits = seen.pop()
        shifted = logits - logits.max(1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        rows = np.arange(len(y))
        dz = np.exp(log_p)
        dz[rows, y] -= 1
        dz /= len(y)
        grads: list[np.ndarray] = []
        for n in reversed(range(len(weights))):
            grads[:0] = [dz.T @ seen[n], dz.sum(0)]
            if n:
                dz = (dz @ weights[n]) * (seen[n] > 0)
        self._update(grads)
        return float(-log_p[rows, y].mean())

    def _update(self, grads: Sequence[np.ndarray]) -> None:
        self.step_count += 1
        for p, g, (m, v) in zip(self.params, grads, self.moments):
            if self.optimizer == "sgd":
                p -= self.rate * g
                continue
            m += (1 - BETAS[0]) * (g - m)
            v += (1 - BETAS[1]) * (g * g - v)
            c1, c2 = (1 - beta**self.step_count for beta in BETAS)
            p -= self.rate * (DECAY * p + (m / c1) / (np.sqrt(v / c2) + EPS))
