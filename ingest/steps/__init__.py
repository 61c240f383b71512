"""The state of every step of a dump, and the service that takes steps into the store."""
