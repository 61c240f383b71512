"""How full the disk of a dump is, and when it will be full."""
