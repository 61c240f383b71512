"""What Dask tasks run: convert, publish, read back, compare, consolidate."""
