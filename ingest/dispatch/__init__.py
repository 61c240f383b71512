"""Steps as Dask tasks: the cluster, and the window of work in flight."""
