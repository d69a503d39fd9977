"""What questions cost, beside what else could answer them: `python -m benchmarks` from the repository's root."""
