"""The page: `dump-ingest serve` and `dump-ingest report`. Nothing here writes to a store.

library.py, moment.py       the runs, each at one moment, and what the list says of them
watchers.py                 the watchers that feed them
asking.py, rendering.py     what a URL asks for, and the words and templates of what it gets
views/                      the screens, made from answers of `ingest`
charts.py, cells.py         pictures
sheet.py                    windows on the values of a tensor
answers.py                  the HTTP API and its description
server.py, handlers.py, access.py
                            the server: paths, requests, answers that viewers share, who may look
report.py                   the incidents as one file
"""
