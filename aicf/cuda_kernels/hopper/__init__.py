"""What kernels for Hopper (sm_90) share, whatever they compute."""
