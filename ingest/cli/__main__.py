"""`python -m ingest.cli`: the command, in an environment whose scripts are not in the path."""

from ingest.cli import main

main()
