"""PyTorch's side of training steps: any loss of some weights, stepped by an optimizer, in one of PyTorch's ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

EAGER, GRAPH = "torch eager", "torch CUDA graph"
COMPILED = "torch.compile"
OVERHEAD, COMPILED_GRAPH = "torch.compile, reduce-overhead", "torch.compile + CUDA graph"
COMPILING = (COMPILED, OVERHEAD, COMPILED_GRAPH)
WARM = 3  # steps before a capture, and before anything is timed


class TorchTrainer:
    """`loss(x, y)` of `weights`, which start as `start`; `clip_norm` is of all gradients together."""

    def __init__(
        self, torch: Any, weights: Sequence[Any], start: Sequence[Any], loss: Callable[[Any, Any], Any], optimizer: Any, how: str,
        clip_norm: float | None = None,
    ) -> None:  # fmt: skip
        self.torch, self.weights, self.optimizer = torch, list(weights), optimizer
        self.how, self.clip_norm, self._start = how, clip_norm, start
        mode = "reduce-overhead" if how == OVERHEAD else None
        self._loss = torch.compile(loss, mode=mode) if how in COMPILING else loss
        self.reset()

    def reset(self) -> None:
        """Back to the start, in place: captured graphs keep their pointers."""
        with self.torch.no_grad():
            for weight, start in zip(self.weights, self._start, strict=True):
                weight.copy_(start)
            for state in self.optimizer.state.values():
                for value in state.values():
                    if value is not None:
                        value.zero_()

    def train(self, x: Any, y: Any) -> Any:
        """One step; its loss, on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(x, y)
        loss.backward()
        if self.clip_norm is not None:
            self.torch.nn.utils.clip_grad_norm_(self.weights, self.clip_norm)
        self.optimizer.step()
        return loss.detach()

    def prepare(self, x: Any, y: Any) -> Callable[[Any, Any], Any]:
        """Compile, warm and capture, as this way has it; returns the step, from the start."""
        torch = self.torch
        step = self._marked if self.how == OVERHEAD else self.train
        if self.how in (GRAPH, COMPILED_GRAPH):
            step = self._captured(x.clone(), y.clone())
        else:
            for _ in range(WARM):
                step(x, y)
        if x.is_cuda:
            torch.cuda.synchronize()
        self.reset()
        return step

    def _marked(self, x: Any, y: Any) -> Any:
        self.torch.compiler.cudagraph_mark_step_begin()
        return self.train(x, y)

    def _captured(self, x: Any, y: Any) -> Callable[[Any, Any], Any]:
        """The whole step as one graph, as PyTorch's documentation has it: warmed on a side stream, then captured."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM):
                self.train(x, y)
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        self.graph = cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with cuda.graph(self.graph):
            loss = self.train(x, y)

        def step(new_x: Any, new_y: Any) -> Any:
            x.copy_(new_x)
            y.copy_(new_y)
            self.graph.replay()
            return loss

        return step
