"""A trace, as Perfetto's own schema reads it."""

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent

import ingest
from ingest.reader.step_flow import flow_of
from tests.dumps import DumpLibrary
from tests.in_process import run_here
from tests.pipeline import ingest_directly
from workers.errors import UsageError


@pytest.fixture(scope="module")
def url(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("stores") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    return str(store)


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
