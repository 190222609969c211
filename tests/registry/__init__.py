"""Tests of selection: variants, the registry, extensions."""
