"""What a Dask task runs: convert, publish, read back, compare, consolidate."""
