"""What bodies compute with: elements in memory, vectors of them, tiles in registers and their layouts."""
