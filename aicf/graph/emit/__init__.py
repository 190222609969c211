"""Builder and emitter, autodiff, optimization, verification and lowering of graphs."""
