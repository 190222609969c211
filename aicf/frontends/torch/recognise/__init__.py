"""What a graph of TorchDynamo's says at length, said in one op before PyTorch makes gradients of it: masks that are known, and activations.

The graph is changed in place. Ops that nothing reads any more are left for AOTAutograd to drop.
"""

from __future__ import annotations

from collections import Counter

from torch.fx import GraphModule

from .activations import recognise_activations
from .masks import recognise_masks


def recognise(graph: GraphModule) -> Counter[str]:
    """What was recognised, how often, and what came close: sentences for reports."""
    found = recognise_masks(graph) + recognise_activations(graph)
    if found:
        graph.graph.lint()
        graph.recompile()
    return found
