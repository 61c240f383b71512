"""Decoders: what the bytes of one dump file mean."""
