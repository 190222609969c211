"""What all ranks of a run do together."""
