"""A trace, as Perfetto's own schema reads it, and graphs, as Model Explorer shows them."""

import importlib.util
import json
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from urllib.parse import parse_qs, quote, urlparse

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent
from playwright.sync_api import Route

import ingest
from ingest.reader.step_flow import flow_of
from tests.cli import run_here
from tests.servers.browser import Chromium
from workers.errors import UsageError


def test_a_trace_has_ranks_steps_and_operators_in_order(url: str, tmp_path: Path) -> None:
    run_here("export", url, str(tmp_path), "--as", "perfetto")
    tracks, events = _read(tmp_path / "trace.pftrace")
    assert {track.process.process_name for track in tracks.values() if track.HasField("process")} == {
        "rank 0",
        "rank 1",
    }
    slices: dict[int, list[list[str]]] = defaultdict(list)
    for uuid, of_track in events.items():
        depth = 0
        for _, event in of_track:
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert depth <= 1
                if depth == 0:
                    slices[tracks[uuid].process.pid].append([])
                slices[tracks[uuid].process.pid][-1].append(event.name)
                depth += 1
            depth -= event.type == TrackEvent.TYPE_SLICE_END
        assert depth == 0
    store = ingest.open_store(url)
    assert slices == {
        rank + 1: [
            [
                f"step {step}",
                *(f"{key.op_type} ({key.op_name})" for key in flow_of(store.step(rank, step)).calls),
            ]
            for step in (1, 2, 3)
        ]
        for rank in (0, 1)
    }


def test_counters_are_norms_and_flows_are_the_spread(url: str, tmp_path: Path) -> None:
    store = ingest.open_store(url)
    ingest.export_trace(store, tmp_path, step=2)
    tracks, events = _read(tmp_path / "trace.pftrace")
    counted = {
        tracks[uuid].name: [event.double_counter_value for _, event in of_track]
        for uuid, of_track in events.items()
        if tracks[uuid].HasField("counter") and tracks[tracks[uuid].parent_uuid].process.pid == 2
    }
    gradients = store.tensors(rank=1, step=2, role="gradient", io="output")
    assert counted["norm of gradient"] == [tensor.statistics.l2_norm for tensor in gradients]
    assert counted["norm of gradient"]
    on_flow: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for uuid, of_track in events.items():
        for _, event in of_track:
            for flow in event.flow_ids:
                on_flow[flow].append((tracks[uuid].process.process_name, event.categories[0]))
    assert list(on_flow.values()) == [
        [("rank 1", "Log"), ("rank 1", "ReduceMean")],
        [("rank 1", "ReduceMean"), ("rank 1", "Neg")],
    ]


def test_a_trace_replaces_no_file_unasked(url: str, tmp_path: Path) -> None:
    asked = ("export", url, str(tmp_path), "--as", "perfetto", "--step", "2", "--rank", "1")
    (written,) = json.loads(run_here(*asked, "--json").stdout)
    assert written["operators"] == len(flow_of(ingest.open_store(url).step(1, 2)).calls)
    assert "exists" in run_here(*asked, code=2).stderr
    run_here(*asked, "--overwrite")


def test_without_perfetto_the_extra_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder", None)
    with pytest.raises(UsageError, match="needs the package perfetto") as refused:
        ingest.export_trace(ingest.open_store(url), tmp_path)
    assert "dump-ingest[perfetto]" in refused.value.hint
    assert not list(tmp_path.iterdir())


def _read(
    path: Path,
) -> tuple[dict[int, TrackDescriptor], dict[int, list[tuple[int, TrackEvent]]]]:
    """Return descriptions and events by track, as the viewer sorts them: by time, then as written."""
    trace = Trace.FromString(path.read_bytes())
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    }
    events: dict[int, list[tuple[int, TrackEvent]]] = defaultdict(list)
    for packet in sorted(trace.packet, key=lambda packet: packet.timestamp):
        if packet.HasField("track_event"):
            assert packet.trusted_packet_sequence_id  # without one, the viewer drops the event
            events[packet.track_event.track_uuid].append((packet.timestamp, packet.track_event))
    assert events.keys() <= tracks.keys()
    return tracks, events


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_model_explorer_shows_the_graph_and_node_data(url: str, tmp_path: Path) -> None:
    """The application is that of the package; a browser runs it."""
    found = importlib.util.find_spec("model_explorer")
    if found is None or not found.submodule_search_locations:
        pytest.skip("ai-edge-model-explorer is not installed: make torch")
    application = Path(found.submodule_search_locations[0]) / "web_app"
    graphs, *node_data = ingest.export_graphs(ingest.open_store(url), tmp_path, rank=1, step=2)
    # What the server of the package does besides.
    adapter = {"fileExts": ["json"], "id": "builtin_json", "name": "JSON adapter", "type": "adapter"}

    def answer(route: Route) -> None:
        asked = urlparse(route.request.url)
        if asked.path == "/api/v1/read_text_file":
            route.fulfill(json={"content": Path(parse_qs(asked.query)["path"][0]).read_text("utf-8")})
        elif asked.path.startswith("/api"):
            route.fulfill(json=[adapter] if asked.path.endswith("get_extensions") else {})
        elif (file := application / (asked.path.lstrip("/") or "index.html")).is_file():
            route.fulfill(path=file)
        else:
            route.abort()

    shown = {
        "models": [{"url": str(graphs)}],
        "nodeData": [str(path) for path in node_data],
        "nodeDataTargets": ["", ""],
    }
    with Chromium() as browser, browser.visit("http://viewer.test") as visitor:
        visitor.page.route("**/*", answer)
        visitor.go(f"/?data={quote(json.dumps(shown))}")
        visitor.page.get_by_text("rank 1, step 2").first.wait_for()
        for path in node_data:
            visitor.page.get_by_text(path.stem).first.wait_for()
        text = visitor.page.inner_text("body")
    calls = flow_of(ingest.open_store(url).step(1, 2)).calls
    assert f"{len(calls)} nodes" in text
    largest = re.findall(r"Max\s+([0-9.]+)\s+([0-9.]+)", text)
    assert largest[0][0] == "2", text


def test_graphs_have_what_passed_between_operators(url: str, tmp_path: Path) -> None:
    run_here("export", url, str(tmp_path), "--as", "model-explorer", "--rank", "1", "--step", "2")
    (graph,) = json.loads((tmp_path / "graphs.json").read_text("utf-8"))["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    step = ingest.open_store(url).step(1, 2)
    flow = flow_of(step)
    edges = [
        (nodes[edge["sourceNodeId"]]["label"], node["label"])
        for node in nodes.values()
        for edge in node["incomingEdges"]
    ]
    inputs = [each.row for call in flow.calls.values() for each in call.inputs]
    produced = [passing for row in inputs if (passing := flow.producer(row)) is not None]
    assert edges == [
        (flow.call_of[each.source].op_type, flow.call_of[each.target].op_type) for each in produced
    ]
    assert ("Log", "ReduceMean") in edges
    data = json.loads((tmp_path / "nan_and_inf.json").read_text("utf-8"))[graph["id"]]["results"]
    bad = {nodes[node]["label"] for node, result in data.items() if result["value"]}
    assert bad == {"Log", "ReduceMean", "Neg"}
