"""A store in which every tensor is a Zarr array of its own, made up when it is asked for."""
