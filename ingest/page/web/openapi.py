"""The description of the HTTP API, made from the very table that the server serves."""

from __future__ import annotations

from typing import Any

from ingest.page.answers import QUESTIONS, Endpoint
from workers import __version__

_RUN = {
    "name": "run",
    "in": "path",
    "required": True,
    "description": "A name from /api/v1/runs.",
    "schema": {"type": "string"},
}
_WATCHERS = {
    "name": "watchers",
    "in": "query",
    "required": False,
    "description": "Whether the token changes with the watchers, too.",
    "schema": {"type": "boolean"},
}
_JSON: dict[str, Any] = {"application/json": {"schema": {}}}
_ERROR = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {
                "error": {
                    "type": "object",
                    "properties": {"message": {"type": "string"}, "hint": {"type": "string"}},
                }
            },
        }
    }
}
_FAILURES = {
    "401": "A token is missing.",
    "404": "The run, rank, step or parameter does not exist.",
    "422": "What was asked for is damaged.",
    "503": "The store does not answer.",
}


def document(base: str) -> dict[str, Any]:
    """Return the OpenAPI document of a server with this base path."""
    paths = {
        "/api/v1/runs": _path(
            "All runs: ranks, steps, the last step, when it was committed, and the rules of the highest "
            "severity that fired in the newest `examined_steps`; none of this of a run that is being read.",
            "",
            [],
        ),
        "/api/v1/moment": _path("What the list of runs says now, as a token that changes with it.", "", []),
        "/api/v1/runs/{run}/moment": _path(
            "What is committed now, as a token that changes with it; and whether the store answers.",
            "ls --token --json",
            [_RUN, _WATCHERS],
        ),
        "/api/v1/runs/{run}/watchers": _path(
            "What the watchers of the run say of themselves: lag and backlog of each rank, the disk of the "
            "dump, and what each step waits for. `steps` is as `watch --explain --from URL --json` prints "
            "it, without the steps that are settled.",
            "ls --watchers --json",
            [_RUN],
        ),
    }
    for question in QUESTIONS:
        paths[f"/api/v1/runs/{{run}}/{question.name}"] = _path(
            question.words, question.command, [_RUN, *_parameters(question)]
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dump-ingest page",
            "version": __version__,
            "description": "Read-only. Numbers that are NaN or infinite are null.",
        },
        "servers": [{"url": base or "/"}],
        "paths": paths,
    }


def _path(words: str, command: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    same = f" The same JSON as `dump-ingest {command}`." if command else ""
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": _JSON}}
    responses |= {code: {"description": why, "content": _ERROR} for code, why in _FAILURES.items()}
    return {
        "get": {
            "summary": words,
            "description": f"{words}{same}",
            "parameters": parameters,
            "responses": responses,
        }
    }


def _parameters(question: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.is_required,
            "description": parameter.words,
            "schema": {"type": parameter.kind},
        }
        for parameter in question.parameters
    ]
