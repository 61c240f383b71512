"""What a process takes from its host and its user: temporary files, credentials, YAML files."""
