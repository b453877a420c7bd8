"""What hotstart costs beside its peers, measured in one run: ``python -m benchmarks``."""
