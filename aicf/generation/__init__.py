"""Sequences that a language model writes: one token after another, drawn from what it makes of those before."""

from .generate import generate
from .generator import Generator
from .sampling import Sampling

__all__ = ["Generator", "Sampling", "generate"]
