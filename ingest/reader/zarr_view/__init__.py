"""A read-only Zarr store in which every tensor is an array of its own; arrays are built on request."""
