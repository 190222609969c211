"""Where the operands of a matrix product are: in memory that TMA copies, in registers, or copied first."""
