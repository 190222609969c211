"""Tests of training: whole models against NumPy, optimizers, state."""
