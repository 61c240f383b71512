"""An agent with a fixed policy, which asks by the tools of `dump-ingest mcp` as often as it can afford."""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ingest.agents.server import answer, text_of
from ingest.page.library import Library
from proving.answers import READERS, Asked
from proving.case import Statement
from workers.errors import DumpIngestError

#: How many calls, and how many characters of answers: 12,000 tokens of three characters.
CALLS, CHARACTERS = 6, 36_000
_QUESTIONS = {"incidents": "anomalies", "comparison": "compare"}


def ask(place: Path, reference: Path | None, *, alone: bool) -> Asked:
    """Ask about the run in a directory as `answers.ask` does, but as an agent.

    It compares first if there is a reference, follows the calls that answers propose in their order, and
    ends as soon as an answer states a cause that values show.
    """
    statements: dict[str, tuple[Statement, ...]] = {}
    problems: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as runs:
        (Path(runs) / "run").symlink_to(place / "run.zarr")
        if reference is not None:
            (Path(runs) / "reference").symlink_to(reference / "run.zarr")
        for question, said in _conversation(Library(runs), compared=reference is not None, alone=alone):
            if isinstance(said, str):
                problems[question] = said
                continue
            statements[question] = tuple(READERS[question](said)) if said else ()
            if any(one.cause and not one.admits for one in statements[question]):
                break
    return Asked(statements, problems)


def _conversation(
    library: Library, *, compared: bool, alone: bool
) -> Iterator[tuple[str, Mapping[str, Any] | str]]:
    """Yield questions and their answers as plain values, or the error of the first call."""
    run = {"run": "run"}
    waiting: deque[tuple[str, dict[str, Any]]] = deque()
    if compared:
        waiting.append(("comparison", run | {"with": "reference"}))
    if alone:
        waiting.append(("incidents", run))
    first, asked, characters = len(waiting), set[str](), 0
    while waiting and len(asked) < CALLS:
        tool, arguments = waiting.popleft()
        if tool in asked:
            continue
        asked.add(tool)
        question = _QUESTIONS.get(tool, tool)
        try:
            said = answer(library, tool, arguments)
        except DumpIngestError as exc:
            if len(asked) <= first:
                yield question, exc.message
            continue
        characters += len(text_of(said))
        if characters > CHARACTERS:
            return
        if question in READERS:
            known = json.loads(text_of(said["answer"]))
            yield question, {"incidents": known} if question == "anomalies" else known
        waiting += [(call["tool"], call["arguments"]) for call in said["next"]]
