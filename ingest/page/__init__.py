"""The page: `dump-ingest serve` and `dump-ingest report`. Nothing here writes to a store.

library.py, moment.py       the runs, each at one moment, and what the list says of them
watchers.py, refreshed.py   the watchers that feed them; what is read again while somebody looks
asking.py, rendering.py     what a URL asks for, and the words and templates of what it gets
questions.py                any declared question: its path, its screen, its lines
answers.py                  the HTTP API and its description
views/                      the other screens, made from answers of `ingest`
charts.py, cells.py, spread.py, image.py
                            pictures
sheet.py                    windows on the values of a tensor
server.py, handlers.py, access.py
                            the server: paths, requests, answers that viewers share, who may look
report.py                   the incidents as one file
"""
