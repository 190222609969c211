"""From a launch to machine code, for a GPU that is there or not; kept on disk; loaded and launched."""
