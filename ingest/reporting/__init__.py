"""How people hear of what happens: logs, webhook, and the report of a run."""
