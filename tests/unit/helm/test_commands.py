"""What the containers of each example run: commands and options that exist, right settings."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dask.config
import distributed  # noqa: F401  registers its defaults with dask
import pytest
import typer.main
import yaml
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker

from ingest.cli.app import app
from ingest.environment import TOKEN_VARIABLE
from ingest.settings import LoadedSettings, load
from tests.charts import (
    CHART,
    PROFILES,
    Object,
    changed,
    containers,
    data,
    environment,
    of_profile,
    pods,
    profile,
    quick,
    words,
)
from tests.charts import objects as rendered
from workers.rules.schema import load_rules

PER_PROFILE = pytest.mark.parametrize("name", PROFILES)
#: What the containers of each example see of the others.
CONFIG = "/etc/dump-ingest/config.yaml"


def all_containers(name: str) -> Iterator[Object]:
    """Yield the containers that run the image of this project."""
    for _, pod in pods(of_profile(name)):
        yield from (container for container in containers(pod) if "/dump-ingest" in container["image"])


@pytest.mark.one_in(3)
@PER_PROFILE
def test_every_command_parses(name: str) -> None:
    for container in all_containers(name):
        program, role, *arguments = words(container)
        if program == "dump-ingest":
            parsed = parse_ours(role, arguments)
            assert str(parsed["config"]) == CONFIG
        else:
            assert program == "dask"
            parsed = parse_dask(role, arguments)
            # Dask takes words that it does not know for arguments of modules to load.
            assert parsed["preload_argv"] == ()


def parse_ours(command: str, arguments: list[str]) -> Mapping[str, Any]:
    group: Any = typer.main.get_command(app)
    context = group.commands[command].make_context(command, arguments)
    return dict(context.params)


def parse_dask(role: str, arguments: list[str]) -> Mapping[str, Any]:
    command = {"scheduler": dask_scheduler, "worker": dask_worker}[role]
    return command.make_context(role, arguments).params


@PER_PROFILE
def test_each_command_accepts_the_rendered_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for container in all_containers(name):
        if container["command"] != ["dump-ingest"]:
            continue
        loaded = load_as_in(container, of_profile(name), tmp_path, monkeypatch)
        # The settings for the latter may be younger than this version.
        others = {TOKEN_VARIABLE, "DUMP_INGEST_EXPECTED_RANKS"}
        assert [name for name in loaded.unknown_variables if name not in others] == []
        if loaded.settings.rules is not None:
            # It may not do what was meant, but it is one.
            load_rules(tmp_path / Path(loaded.settings.rules).name)


def load_as_in(
    container: Object, found: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> LoadedSettings:
    """Load the settings as the command in a container does."""
    for variable in list(os.environ):
        if variable.startswith("DUMP_INGEST_"):
            monkeypatch.delenv(variable)
    for variable, value in environment(container).items():
        if variable.startswith("DUMP_INGEST_"):
            monkeypatch.setenv(variable, value)
    made = [o for o in found if o["kind"] == "ConfigMap" and "config.yaml" in o["data"]]
    files = made[0]["data"] if made else {"config.yaml": "store: s3://bucket/run.zarr"}
    for file, text in files.items():
        (directory / file).write_text(text)
    return load(directory / "config.yaml")


def test_settings_arrive_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helm makes floats of great numbers and texts of the keys of maps."""
    given = {"inflight_size": 2**33, "shard_size": "64MiB", "rank_map": {"0": 8, "1": 9}, "workers": 3}
    found = rendered(changed(profile("standalone"), config=profile("standalone")["config"] | given))
    (watcher,) = (
        container for _, pod in pods(found) for container in containers(pod) if container["name"] == "watcher"
    )
    settings = load_as_in(watcher, found, tmp_path, monkeypatch).settings
    assert settings.inflight_size == 2**33
    assert settings.shard_size == 64 * 1024**2
    assert settings.rank_map == {0: 8, 1: 9}
    assert settings.workers == 3
    assert settings.metrics == "0.0.0.0:9108"
    assert settings.scheduler is None


def test_a_watcher_asks_for_what_the_workers_of_its_node_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rendered(changed(quick("daemonset"), watcher__worker={"count": 2, "threads": 3}))
    for _, pod in pods(found):
        by_name = {container["name"]: container for container in containers(pod)}
        if "watcher" not in by_name:
            continue
        wanted = load_as_in(by_name["watcher"], found, tmp_path, monkeypatch).settings.worker_resources
        assert list(wanted) == ["host-from-elsewhere.example"]
        for number in range(2):
            offered = parse_dask("worker", words(by_name[f"worker-{number}"])[2:])["resources"]
            # As many tasks as there are threads.
            assert offered == "host-from-elsewhere.example=3"
    # And where any worker will do, nothing is asked for.
    assert "WORKER_RESOURCES" not in str(of_profile("deployment"))


@pytest.mark.parametrize(
    ("name", "host"), [("daemonset", "from-elsewhere.example"), ("deployment", "run1-dump-ingest-watcher")]
)
def test_a_host_has_the_same_name_after_a_restart(
    name: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host name of a container is that of its pod, which is never the same again."""
    (watcher,) = (container for container in all_containers(name) if container["name"] == "watcher")
    assert load_as_in(watcher, of_profile(name), tmp_path, monkeypatch).settings.host == host


def test_everything_under_way_can_be_finished_before_the_pod_is_killed() -> None:
    for name in PROFILES:
        drain_s = profile(name).get("config", {}).get("drain_s", 300 if name == "sidecar" else 30)
        for where, pod in pods(of_profile(name)):
            if {"watcher", "dump-ingest-watcher"} & {container["name"] for container in containers(pod)}:
                assert pod["spec"]["terminationGracePeriodSeconds"] > drain_s, where
                for worker in (container for container in containers(pod) if "worker-" in container["name"]):
                    # It ends after the watcher, or waits as long as the watcher may.
                    waits = worker.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
                    assert worker.get("restartPolicy") == "Always" or waits == ["sleep", str(drain_s)], where


def test_a_sidecar_lets_the_job_end_and_takes_its_last_step() -> None:
    """A plain container would keep a Job from ever completing."""
    ((_, pod),) = (found for found in pods(of_profile("sidecar")) if found[0].startswith("ConfigMap/"))
    assert {container["restartPolicy"] for container in containers(pod)} == {"Always"}
    *workers, watcher = containers(pod)
    assert [container["name"] for container in workers] == ["dump-ingest-worker-0"]
    assert watcher["name"] == "dump-ingest-watcher"
    # Kubernetes asks sidecars to end in reverse order, after the job. A hook would run beside the job.
    assert "lifecycle" not in watcher
    assert pod["spec"]["terminationGracePeriodSeconds"] == 600
    assert {"name": "DUMP_INGEST_DRAIN_S", "value": "300"} in watcher["env"]
    assert "startupProbe" not in watcher
    assert "readinessProbe" not in watcher
    options = yaml.safe_load((CHART / "files" / "known.yml").read_text())["options"]["watch"]
    assert ("--finish" in watcher["args"]) is ("--finish" in options)


@pytest.mark.parametrize(
    "name", [name for name in PROFILES if name not in {"standalone", "metrics-auth", "page"}]
)
def test_dask_knows_everything_in_its_configuration(name: str, tmp_path: Path) -> None:
    """Dask says nothing about keys that it does not know."""
    files = data(of_profile(name), "-dask")
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    for key in flat(yaml.safe_load(files["1-chart.yaml"])):
        if not key.startswith("distributed.nanny.pre-spawn-environ."):
            assert dask.config.get(key, default="unknown") != "unknown", key
    merged = dask.config.collect([str(tmp_path)], env={})
    uses_tls = profile(name).get("dask", {}).get("tls", {}).get("enabled", True)
    assert bool(dask.config.get("distributed.comm.require-encryption", None, config=merged)) is uses_tls
    if name == "autoscaling":
        assert dask.config.get("distributed.comm.timeouts.connect", config=merged) == "60s"
        assert dask.config.get("distributed.scheduler.no-workers-timeout", config=merged) == "60s"


def flat(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"
