"""Models that are published: their numbers, their files."""
