"""Implementations of `ObjectStore`: a directory, any file system of fsspec, S3, and an observing wrapper."""
