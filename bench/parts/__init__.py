"""What there is to measure: one module for each comparison."""
