"""Devices: `spec.py` describes them (pure data), `runtime.py` holds memory and streams, `interop.py` meets other libraries."""
