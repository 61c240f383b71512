"""The data plane of dump-ingest: what a Dask task runs."""
