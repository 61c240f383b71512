"""The parts of the benchmark: one module for each comparison, with a function `measure`."""
