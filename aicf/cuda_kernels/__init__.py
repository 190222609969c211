"""CUDA kernels. Importing this package imports no numba.

A folder is a family (attention, bodies, conv, gemm, index, maps, rows) or what families are made with (compiler, hopper, ptx, tiles). A variant lies
beside its body: `maps/elementwise.py` says what the kernel takes, costs and launches; `maps/elementwise_body.py` runs on the GPU. Every
module of every folder is imported but those of `compiler`, so that a new file's variants are found without a list.
"""

from ..discover import modules_in, packages_in

MODULES = tuple(
    module
    for folder in packages_in(__name__, __path__)
    if not folder.__name__.endswith(
        ".compiler"
    )  # the way to machine code, and to the GPU: imported when it is needed
    for module in modules_in(folder.__name__, folder.__path__)
)
