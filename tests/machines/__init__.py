"""Models of GPUs that run on the host, for the tests of kernels in tests/cuda: what each instruction does, as the PTX manual has it."""
