"""Constants of predictions, fitted to times of kernels on regions of published models: see `aicf calibrate`."""
