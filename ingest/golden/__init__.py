"""Numbers of a model in CI: a fixture of pytest that holds a recording against the one in the repository."""
