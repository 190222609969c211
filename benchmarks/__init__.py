"""Benchmarks: every claim of speed, checked by whoever has the device.

    python -m benchmarks list
    python -m benchmarks elementwise mlp --device cuda
    python -m benchmarks report
    python -m benchmarks.profile gpt2 --out profile.json

A case is verified against a reference first and then timed, its sides alternately. Results are files in `benchmarks/results/`;
docs/performance.md is written from them and from nothing else. A profile is of one program: where its time goes.
"""
