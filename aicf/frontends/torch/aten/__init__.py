"""The rules of ATen's ops, by family. See `rules.py` for what a rule is."""
