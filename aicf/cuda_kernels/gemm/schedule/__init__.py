"""How the tiles of a matrix product are distributed over blocks: in turn, by splits of k, or as equal work units."""
