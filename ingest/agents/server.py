"""The Model Context Protocol, by its official package: tools, runs as resources, and a prompt; read-only."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ingest.agents.tools import MOST_CHARACTERS, TOOLS, answer, text_of
from ingest.page.access import Access, Listen
from ingest.page.library import Library, Overview
from workers import __version__
from workers.errors import DumpIngestError, UsageError

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
                    name=tool.name, description=tool.words, input_schema=tool.schema, annotations=hints
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
        text = json.dumps(overview.to_dict())
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


class _Guarded:
    """An application that only those reach who may see the page."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        if headers is not None and not self._access.knows_host(headers.get("Host", "")):
            await PlainTextResponse("this server is not called by that name", 403)(scope, receive, send)
        elif headers is not None and not self._access.admits(headers, ""):
            await PlainTextResponse("a token is missing", 401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def bind(listen: Listen) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UsageError: the address is in use, or does not belong to this host.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family)
    except OSError as exc:
        raise UsageError(f"cannot listen at {listen.shown}: {exc.strerror or exc}") from exc


def serve_http(library: Library, listening: socket.socket, access: Access) -> None:
    """Serve clients at `/mcp` over HTTP, each request on its own, until SIGINT or SIGTERM."""
    app = server_of(library).streamable_http_app(
        json_response=True,
        stateless_http=True,
        # Names of the host are checked by `access`, as on the page.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    config = uvicorn.Config(_Guarded(app, access), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])
