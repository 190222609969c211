"""From a model to a running program: build, fuse, run, in the order data flows; `compile.py` is the whole chain."""
