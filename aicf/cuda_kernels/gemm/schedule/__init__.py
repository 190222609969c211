"""How the blocks of a matrix product divide its work."""
