"""What coding agents ask, by the official package of the Model Context Protocol; read-only.

A tool for each answer of the page's API, cut to what fits into a conversation; runs as resources; a prompt.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from ingest.page.asking import ENDPOINTS, Arguments, Asked, Endpoint, Links, UrlParameter
from ingest.page.library import Library, Overview
from ingest.page.server import Access
from workers import __version__
from workers.errors import DumpIngestError, UsageError

#: The longest answer, in characters of JSON: 2,000 tokens of three characters, which names and numbers take.
MOST_CHARACTERS: Final = 6000
_PREFIX = "dump-ingest://runs/"
_INSTRUCTIONS = f"""\
Tensor dumps of training jobs, in a store. All tools only read. Begin with `incidents`, then follow `next`
of each answer. `level` says how sure a finding is: `shown` by values of this run, `likely`, or `open`: do
not state a cause that is `open`. What is null or empty is left out. An answer has at most
{MOST_CHARACTERS} characters; if it has `cursor`, call again with it for the rest."""
_PROMPT = types.Prompt(
    name="find_out_what_went_wrong",
    description="Find the rank, step and operator that went wrong first, and why.",
    arguments=[
        types.PromptArgument(name="run", description="The run; may be left out if there is one."),
        types.PromptArgument(name="with", description="A healthy run to compare with, if there is one."),
    ],
)


def server_of(library: Library) -> Server[Any]:
    """Return a server for the runs of a library."""

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.words,
                    input_schema={
                        "type": "object",
                        "properties": {
                            each.name: {"type": each.kind, "description": each.words}
                            for each in tool.parameters
                        },
                        "required": [each.name for each in tool.parameters if each.is_required],
                        "additionalProperties": False,
                    },
                    annotations=hints,
                )
                for tool in TOOLS.values()
            ]
        )

    async def call_tool(_: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answered = await asyncio.to_thread(answer, library, asked.name, asked.arguments or {})
        except DumpIngestError as exc:
            said = "\n".join(filter(None, (exc.message, exc.hint)))
            return types.CallToolResult(content=[types.TextContent(text=said)], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text=text_of(answered))])

    async def list_resources(_: Any, __: Any) -> types.ListResourcesResult:
        names = await asyncio.to_thread(library.names)
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    name=name,
                    uri=f"{_PREFIX}{name}",
                    description="Ranks, steps and the worst findings of this run.",
                    mime_type="application/json",
                )
                for name in names
            ]
        )

    async def read_resource(_: Any, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        name = asked.uri.removeprefix(_PREFIX)
        overview = await asyncio.to_thread(lambda: Overview.of(library.run(name).moment().store))
        text = json.dumps(asdict(overview))
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=asked.uri, mime_type="application/json", text=text)]
        )

    async def list_prompts(_: Any, __: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[_PROMPT])

    async def get_prompt(_: Any, asked: types.GetPromptRequestParams) -> types.GetPromptResult:
        if asked.name != _PROMPT.name:
            raise UsageError(f"no prompt {asked.name[:80]!r}", hint=f"Prompts: {_PROMPT.name}.")
        given = asked.arguments or {}
        run = f" in the run {given['run']}" if given.get("run") else ""
        beside = f" Then call `comparison` with `with` {given['with']}." if given.get("with") else ""
        text = (
            f"Find out what went wrong{run}: which rank, step and operator was first, and why. Call "
            f"`incidents`, and follow `next`.{beside} Name the numbers that show it. If an answer says "
            "`open`, say that the cause is not known."
        )
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=_PROMPT.description, messages=[message])

    return Server(
        "dump-ingest",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


async def serve_stdio(library: Library) -> None:
    """Serve one client over standard input and output until it closes them."""
    server = server_of(library)
    async with stdio_server() as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


def serve_http(library: Library, sockets: list[socket.socket], access: Access) -> None:
    """Serve clients at `/mcp` over HTTP, each request on its own, until SIGINT or SIGTERM."""
    app = server_of(library).streamable_http_app(
        json_response=True,
        stateless_http=True,
        # Names of the host are checked by `access`, as on the page.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        if headers is not None and not access.knows_host(headers.get("Host", "")):
            await PlainTextResponse("this server is not called by that name", 403)(scope, receive, send)
        elif headers is not None and not access.admits(headers, ""):
            await PlainTextResponse("a token is missing", 401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    config = uvicorn.Config(guarded, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=sockets)


#: The longest text in an answer that is cut, in characters.
_MOST_TEXT: Final = 400
#: How many members lists inside of rows keep, tried in this order until the answer fits.
_MEMBERS: Final = (50, 10, 3, 1)
_CURSOR: Final = UrlParameter("cursor", "integer", "Where to go on: `cursor` of the answer before.")
#: The tool that is about no run.
_RUNS: Final = "runs"
#: What is worth asking after an answer, the most useful first.
_NEXT: Final[Mapping[str, tuple[str, ...]]] = {
    _RUNS: ("incidents",),
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


_RUN: Final = UrlParameter("run", "string", "A name from `runs`; may be left out if there is one run.")
TOOLS: Final[Mapping[str, Endpoint]] = {
    _RUNS: Endpoint(_RUNS, "The runs that can be asked about.", (_CURSOR,), lambda _: None),
    **{each.name: replace(each, parameters=(_RUN, *each.parameters, _CURSOR)) for each in ENDPOINTS},
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
    run = "" if name == _RUNS else _run_of(library, arguments.text("run"))
    if name == _RUNS:
        whole: Any = library.names()
    else:
        whole = tool.answer(Asked(library.run(run).moment(), own, Links("", run), library))
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
        found = {each.name: place[each.name] for each in parameters if each.name in place}
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
    for output in value.get("outputs") or ():
        if isinstance(output, dict) and isinstance(output.get("name"), str):
            yield output["name"]


def _pruned(value: Any) -> Any:
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
    rest: dict[str, Any] = {}
    for name, member in others.items():
        short = _fitting(member, room // 2 - _size(rest) - len(name) - 4)
        rest |= {} if short is None else {name: short}
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
