"""What otelctx costs, as ratios: ``python -m benchmarks``, or ``make bench``. See README.md beside this file."""
