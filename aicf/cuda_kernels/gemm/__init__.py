"""Matrix products, and what follows them.

problem.py                    what a region is as a product, read once: operands, epilogue, arguments
simt, fma, mma, wgmma.py      a kernel for each instruction, with a config for each tile; the body is in `*_body.py`
small_m.py                    products with few rows or columns, and of weights of 8 and 4 bits
tilings.py, *_tiling.py       tiles, as records that kernels and bodies share
operands/                     how operands reach shared memory and registers
schedule/                     how blocks divide the work: persistent, split-K, stream-K
epilogue.py, column_sums.py   what follows the product
linear_loss.py, wgmma_loss.py products of logits whose loss is computed with them
"""
