"""The service: watcher, steps, dispatch and retention wired together, and what it tells its observers."""
