"""What arrives spelt out, found and emitted as one op: before the gradients are, and before regions form."""
