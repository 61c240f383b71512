"""The page: `dump-ingest serve` and `dump-ingest report`.

`library` opens the runs, each at one moment; `views` make a screen from answers of `ingest`; `drawing`
draws; `web` is the server. Nothing here writes to a store.
"""
