"""From maps and folds to loops in the host's machine code, through numba; kept on disk."""
