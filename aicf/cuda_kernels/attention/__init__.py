"""Attention: kernels that go over tiles of keys with a running softmax, and keep no scores."""
