"""Tools for agents: one for each answer of the page's API, each cut to what fits into a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ingest.page.answers import ENDPOINTS, Endpoint
from ingest.page.asking import Arguments, Asked, Links, UrlParameter
from ingest.page.library import Library
from workers.errors import UsageError

#: The longest answer, in characters of JSON: 2,000 tokens of three characters, which names and numbers take.
MOST_CHARACTERS: Final = 6000
#: The longest text in an answer that is cut, in characters.
_MOST_TEXT: Final = 400
#: How many members lists inside of rows keep, tried in this order until the answer fits.
_MEMBERS: Final = (50, 10, 3, 1)
_CURSOR: Final = UrlParameter("cursor", "integer", "Where to go on: `cursor` of the answer before.")
#: What is worth asking after an answer, the most useful first.
_NEXT: Final[Mapping[str, tuple[str, ...]]] = {
    "runs": ("incidents",),
    "incidents": ("origin", "tensor", "audit", "divergence"),
    "findings": ("incidents", "tensor"),
    "origin": ("tensor", "values"),
    "divergence": ("tensor", "layout"),
    "comparison": ("tensor", "growth"),
    "audit": ("tensor", "values"),
    "steps": ("incidents", "tensors"),
    "tensors": ("tensor",),
    "tensor": ("values",),
}
#: Questions about a whole run: what was first may lie elsewhere than what was asked about before.
_OF_RUN: Final = frozenset({"incidents", "divergence"})
_PLACE: Final = ("rank", "step", "name")


@dataclass(frozen=True, slots=True)
class Tool:
    """One question that an agent may ask."""

    name: str
    words: str
    parameters: tuple[UrlParameter, ...]
    endpoint: Endpoint | None = None
    """None for the list of runs."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": {
                each.name: {"type": each.kind, "description": each.words} for each in self.parameters
            },
            "required": [each.name for each in self.parameters if each.is_required],
            "additionalProperties": False,
        }


_RUN: Final = UrlParameter("run", "string", "A name from `runs`; may be left out if there is one run.")
TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        Tool("runs", "The runs that can be asked about.", (_CURSOR,)),
        *(Tool(each.name, each.words, (_RUN, *each.parameters, _CURSOR), each) for each in ENDPOINTS),
    )
}


def answer(library: Library, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a tool: `answer`; if it was cut, `rows` and `cursor`; and the `next` calls.

    What is None or empty is left out. An answer has at most `MOST_CHARACTERS` characters of JSON.

    Raises:
        UsageError: the tool, the run or an argument does not exist, or is not what it must be.
        StoreError: the store cannot be read, or what was asked for is damaged.
    """
    tool = TOOLS.get(name)
    if tool is None:
        raise UsageError(f"no tool {name[:80]!r}", hint=f"Tools: {', '.join(TOOLS)}.")
    texts = {key: _text(value) for key, value in given.items() if value is not None}
    arguments = Arguments.of(texts, tool.parameters)
    cursor = arguments.integer("cursor") or 0
    own = Arguments({key: text for key, text in arguments.given.items() if key not in ("run", "cursor")})
    run = _run_of(library, arguments.text("run")) if tool.endpoint is not None else ""
    if tool.endpoint is None:
        whole: Any = library.names()
    else:
        whole = tool.endpoint.answer(Asked(library.run(run).moment(), own, Links("", run), library))
    asked = dict(own.given) | ({"run": run} if run and len(library.names()) > 1 else {})
    next_calls = [_call(*call) for call in _following(name, whole, asked)]
    room = MOST_CHARACTERS - _size(next_calls) - 200
    cut = _cut(_pruned(whole), cursor, room)
    if "cursor" in cut:
        next_calls.insert(0, _call(name, asked | {"cursor": cut["cursor"]}))
    return cut | {"next": next_calls}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _run_of(library: Library, name: str) -> str:
    names = library.names()
    if not name and len(names) == 1:
        return names[0]
    if name not in names:
        known = ", ".join(names[:20])
        raise UsageError(f"no run {name[:80]!r}" if name else "no run is named", hint=f"Runs: {known}.")
    return name


def _call(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    known = {each.name: each.kind for each in TOOLS[tool].parameters}
    return {
        "tool": tool,
        "arguments": {
            name: int(value) if known[name] == "integer" else value
            for name, value in arguments.items()
            if name in known
        },
    }


def _following(tool: str, whole: Any, asked: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is worth asking about the first place that an answer names: tool and arguments."""
    place = next(_places(whole), {})
    for following in _NEXT.get(tool, ()):
        parameters = TOOLS[following].parameters
        needed = {each.name for each in parameters if each.is_required}
        found = {name: value for name, value in place.items() if name in {each.name for each in parameters}}
        arguments = {name: value for name, value in asked.items() if name in ("run", "with")}
        arguments |= {} if following in _OF_RUN else found
        if needed <= arguments.keys():
            yield following, arguments


def _places(value: Any) -> Iterator[dict[str, Any]]:
    """Yield where an answer says that something is: rank, step and tensor, depth first."""
    if isinstance(value, dict):
        step = value.get("step", value.get("first_step"))
        tensor = value.get("tensor") or value.get("name")
        tensor = tensor if isinstance(tensor, str) else next(_names(value), None)
        place = dict(zip(_PLACE, (value.get("rank"), step, tensor), strict=True))
        if isinstance(place["rank"], int):
            yield {name: each for name, each in place.items() if each is not None}
    if isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _places(member)


def _names(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of outputs of an operator."""
    for output in value.get("outputs") or ():
        if isinstance(output, dict) and isinstance(output.get("name"), str):
            yield output["name"]


def _pruned(value: Any) -> Any:
    """Return a value without what is None or empty inside of it."""
    if isinstance(value, Mapping):
        members = {str(key): _pruned(member) for key, member in value.items()}
        return {key: member for key, member in members.items() if member not in (None, "", [], {})}
    return [_pruned(member) for member in value] if isinstance(value, list | tuple) else value


def _cut(value: Any, cursor: int, room: int) -> dict[str, Any]:
    """Return a value of at most `room` characters: of its longest list, some rows from a cursor on."""
    if not cursor and _size(value) <= room:
        return {"answer": value}
    members = {"": value} if isinstance(value, list) else value
    lists = [name for name, member in members.items() if isinstance(member, list)]
    longest = max(lists, key=lambda name: _size(members[name]), default="")
    rows = members.get(longest, [])
    if cursor and cursor >= len(rows):
        raise UsageError(f"cursor: there are {len(rows)} rows", hint="Leave it out to begin again.")
    others = {name: member for name, member in members.items() if name != longest}
    rest = _fitting(others, room // 2) or {}
    taken = _first_rows(rows[cursor:], room - _size(rest))
    end = cursor + max(len(taken), 1)
    whole = {
        "answer": taken if isinstance(value, list) else rest | {longest: taken},
        "rows": f"{cursor} to {end - 1} of {len(rows)}",
    }
    return whole | ({"cursor": end} if end < len(rows) else {})


def _first_rows(rows: Sequence[Any], room: int) -> list[Any]:
    """Return the rows that fit in `room` characters; only the first of them may lose most of its length."""
    taken: list[Any] = []
    for row in rows:
        short = _fitting(row, room)
        if short is None or (taken and _size(short) < _size(row) // 4):
            break
        taken.append(short)
        room -= _size(short) + 2
    return taken


def _fitting(value: Any, room: int) -> Any:
    """Return a value with its lists cut until it fits in `room` characters; None if it never does."""
    shorter = (_shortened(value, most) for most in _MEMBERS)
    return next((short for short in shorter if _size(short) <= room), None)


def _shortened(value: Any, most: int) -> Any:
    """Return a value whose lists have at most `most` members; each says how many there are besides."""
    if isinstance(value, dict):
        return {key: _shortened(member, most) for key, member in value.items()}
    if isinstance(value, list):
        more = [f"... and {len(value) - most} more"] if len(value) > most else []
        return [_shortened(member, most) for member in value[:most]] + more
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return f"{value[:_MOST_TEXT]}... ({len(value)} characters)"
    return value


def text_of(answered: Any) -> str:
    """Return an answer as compact JSON."""
    return json.dumps(answered, ensure_ascii=False, separators=(",", ":"), default=str)


def _size(value: Any) -> int:
    return len(text_of(value))
