"""Training runs: the loop, batches that can be resumed, checkpoints, logs."""

from .batches import Batches, Tokens
from .checkpoints import Progress, place_of
from .fit import History, fit

__all__ = ["Batches", "History", "Progress", "Tokens", "fit", "place_of"]
