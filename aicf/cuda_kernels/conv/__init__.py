"""Convolutions of channels last."""
