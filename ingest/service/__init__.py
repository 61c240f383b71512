"""The service: watcher, steps, dispatch and retention put together, and what it reports to its observers."""
