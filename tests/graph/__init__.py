"""Tests of the graph: emission, verification, fusion, plans, feeding, running."""
