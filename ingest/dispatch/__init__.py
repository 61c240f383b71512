"""Dask: a cluster to connect to, and steps that become its tasks."""
