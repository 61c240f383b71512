"""Decoders: what the bytes of a dump file mean. One module for each file format."""
