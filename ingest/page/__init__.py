"""The page: `dump-ingest serve` and `dump-ingest report`. Nothing here writes to a store.

library.py                  the runs, each at one moment, and what the list says of them
watchers.py                 the watchers that feed them
asking.py, rendering.py     what a URL asks for, any declared question, the HTTP API; words and templates
views/                      the other screens, made from answers of `ingest`; the incidents as one file
charts.py                   pictures
sheet.py                    windows on the values of a tensor, and those as a picture
server.py                   the server: paths, requests, answers that viewers share, who may look
"""
