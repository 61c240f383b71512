"""Benchmarks on data shaped like a real dump; `python -m bench` runs them and prints the figures."""
