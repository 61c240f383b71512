"""How people learn of events: logs, and a webhook for findings."""
