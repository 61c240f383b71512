"""The tools of agents: every answer is short, goes on by its cursor, and says what to ask next."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from ingest.agents.server import MOST_CHARACTERS, TOOLS, answer, text_of
from ingest.page.library import Library
from tests.servers.process import free_port
from tests.stores import DumpLibrary, ingest_directly
from workers.errors import UsageError
from workers.rules.schema import load_rules

COMMAND = (sys.executable, "-m", "ingest.cli", "mcp")
LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


@pytest.fixture(scope="module")
def library(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A run in which a logarithm makes NaN, on rank 1 from step 2 on."""
    store = tmp_path_factory.mktemp("stores") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=load_rules().enabled)
    return Library(str(store))


def _given(name: str) -> dict[str, Any]:
    known = {"rank": 1, "step": 2, "name": LOG, "with": "run.zarr"}
    needed = {each.name: known[each.name] for each in TOOLS[name].parameters if each.is_required}
    return needed | ({"step": 2} if name in ("tensor", "tensors", "values") else {})


@pytest.mark.parametrize("name", [name for name in TOOLS if name != "outliers"])  # refused, see below
def test_answers_are_short_and_their_next_calls_can_be_made(library: Library, name: str) -> None:
    answered = answer(library, name, _given(name))
    assert len(text_of(answered)) <= MOST_CHARACTERS
    for call in answered["next"]:
        assert answer(library, call["tool"], call["arguments"])["answer"] is not None


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("nonsense", {}, "no tool"),
        ("incidents", {"run": "other"}, "no run 'other'"),
        ("incidents", {"rank": "x"}, "is not a whole number"),
        ("incidents", {"colour": 1}, "no parameter 'colour'"),
        ("tensor", {"rank": 1, "step": 2}, "name is missing"),
        ("tensor", {"rank": 1, "step": 2, "name": "Log"}, "has no tensor"),
        ("tensors", {"rank": 1, "step": 2, "cursor": 100_000}, "rows"),
        ("outliers", {}, "none of the chosen tensors has marginals"),
    ],
)
def test_a_wrong_call_says_what_to_do(library: Library, name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as told:
        answer(library, name, given)
    assert told.value.hint or "whole number" in words


async def _asked(client: Client) -> dict[str, Any]:
    """Ask as an agent does, with the client of the protocol's own package, which checks every message."""
    tools = (await client.list_tools()).tools
    assert {tool.name for tool in tools} == set(TOOLS)
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
    resources = (await client.list_resources()).resources
    overview = (await client.read_resource(resources[0].uri)).contents[0].model_dump()
    assert json.loads(overview["text"])["severity"] == "critical"
    prompt = await client.get_prompt("find_out_what_went_wrong", {"run": "run.zarr"})
    assert "incidents" in prompt.model_dump()["messages"][0]["content"]["text"]
    refused = await client.call_tool("incidents", {"run": "other"})
    assert refused.is_error
    assert "run.zarr" in refused.model_dump()["content"][0]["text"]
    answered = await client.call_tool("origin", {})
    assert not answered.is_error
    found: dict[str, Any] = json.loads(answered.model_dump()["content"][0]["text"])["answer"]
    return found


def test_an_agent_asks_over_standard_input(library: Library) -> None:
    async def ask() -> dict[str, Any]:
        server = StdioServerParameters(
            command=COMMAND[0], args=[*COMMAND[1:], library.url], env=dict(os.environ)
        )
        async with Client(server) as client:
            return await _asked(client)

    assert asyncio.run(ask())["op_type"] == "Log"


@pytest.fixture
def address(library: Library, tmp_path: Path) -> Iterator[str]:
    """A server over HTTP that asks for a token."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123")
    listen = f"127.0.0.1:{free_port()}"
    command = [*COMMAND, library.url, "--listen", listen, "--token-file", str(token)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "answering agents" in process.stderr.readline()
        yield f"http://{listen}/mcp"
        process.terminate()


def test_over_http_an_agent_needs_the_token(address: str) -> None:
    import httpx2

    async def ask(token: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(address, http_client=http)) as client,
        ):
            return await _asked(client)

    assert asyncio.run(ask("0123456789abcdef0123"))["op_type"] == "Log"
    assert httpx2.post(address, json={}, timeout=60).status_code == 401
