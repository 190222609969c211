"""Machine code of all devices, found by its content: what functions and values come to as bytes, and files on disk."""
