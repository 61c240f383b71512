"""Deployment files: what they start is accepted by the commands."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask.config
import pytest
import yaml
from distributed import Client, LocalCluster, Security
from distributed.cli import dask_scheduler, dask_worker
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from deploy.sizing import JOBS, PAGE, Job, size, table, with_table
from ingest.cli.app import app
from ingest.settings import load
from tests.charts import find, objects

# Check that the commands in deployment files are accepted by our command line, or by Dask's.


_DASK: Mapping[str, Any] = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}


def needs(program: str) -> None:
    """Skip the test if a program is not installed. In CI, fail it."""
    if shutil.which(program) is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"not installed: {program} (make servers)")


def assert_parses(words: Sequence[str]) -> None:
    """Parse a command without running it. Fail on an unknown option or an invalid value."""
    program, *arguments = words
    match Path(program).name:
        case "dump-ingest":
            command: Any = get_command(app)
        case "dask":
            role, *arguments = arguments
            command = _DASK[role]
        case other:
            pytest.fail(f"{other} is not a program of the image")
    parent = None
    while True:
        parent = command.make_context(program, list(arguments), parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        # The parser of a group keeps the words that belong to its subcommand.
        program, command, arguments = command.resolve_command(parent, [*parent._protected_args, *parent.args])


def assert_settings(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Read variables as settings of this project and of Dask. Fail if one of them sets nothing."""
    with monkeypatch.context() as patched:
        for name in os.environ:
            if name.startswith("DUMP_INGEST_"):
                patched.delenv(name)
        for name, value in environment.items():
            patched.setenv(name, value)
        assert load().unknown_variables == ()
    for name in environment:
        if name.startswith("DASK_DISTRIBUTED__"):
            key = name.removeprefix("DASK_").lower().replace("__", ".")
            assert dask.config.get(key, default="missing") != "missing", name


def assignments(text: str) -> dict[str, str]:
    """Return the `NAME=value` lines of an environment file, including those that are commented out."""
    return dict(re.findall(r"^#?([A-Z][A-Z0-9_]*)=(.*)$", text, re.MULTILINE))


# The file of the tour in containers; tests/integration/test_packages.py runs its services.


TOUR = Path(__file__).parents[3] / "deploy" / "compose"
TEXT = (TOUR / "compose.yaml").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == FILE["x-role"]["image"]]


def words_of(service: dict[str, Any]) -> list[str]:
    return [*service.get("entrypoint", ["dump-ingest"]), *service.get("command", [])]


def test_it_is_as_the_specification_has_it() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [checker, "--builtin-schema", "vendor.compose-spec", TOUR / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", OURS)
def test_commands_parse(name: str) -> None:
    words = words_of(SERVICES[name])
    if words[0] in {"dump-ingest", "dask"}:
        assert_parses(words)
    else:
        assert words[0] in {"python", "chown"}


def test_every_service_and_image_is_explained() -> None:
    for name, service in SERVICES.items():
        assert re.search(rf"^  # .*\n  {name}:$", TEXT, re.MULTILINE), name
        assert ":" in service["image"].rpartition("/")[2], f"{service['image']} has no version"
        assert not service["image"].endswith(":latest")


def test_nothing_waits_for_a_health_that_is_never_told() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            checked = SERVICES[other].get("healthcheck", {"test": ["the image's"]} if other in OURS else {})
            if how["condition"] == "service_healthy":
                assert checked.get("test"), f"{name} waits for {other}"
            else:
                assert how["condition"] == "service_completed_successfully"


def test_roles_are_shut_off() -> None:
    for name in OURS:
        service = SERVICES[name]
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["user"] != "0:0" or name == "volume"


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    needs("promtool")
    (tmp_path / "prometheus.yml").write_text((TOUR / "prometheus.yml").read_text())
    (tmp_path / "rules.yml").write_text((TOUR.parent / "prometheus" / "rules.yml").read_text())
    subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], check=True, capture_output=True
    )
    jobs = {
        job["job_name"] for job in yaml.safe_load((TOUR / "prometheus.yml").read_text())["scrape_configs"]
    }
    others = yaml.safe_load((TOUR.parent / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert jobs == {job["job_name"] for job in others}


# The units: as systemd reads them, and with the commands that they start.


UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
NAMES = {
    "dump-ingest-watcher@.service": "dump-ingest-watcher@job.service",
    "dump-ingest-worker@.service": "dump-ingest-worker@3.service",
    "dump-ingest-scheduler.service": "dump-ingest-scheduler.service",
    "dump-ingest-consolidator.service": "dump-ingest-consolidator.service",
    "dump-ingest-page.service": "dump-ingest-page.service",
    "dump-ingest-gc.service": "dump-ingest-gc.service",
}
#: Runs to its end.
ONCE = "dump-ingest-gc.service"
#: As docs/deployment.md says it: 0 is shut off from everything, 10 from nothing.
EXPOSURE = 1.3
#: Stand-ins for what systemd and the environment files put in.
VALUES = {
    "DUMP": "/data/dump",
    "DUMP_INGEST_SCHEDULER": "tls://scheduler:8786",
    "DASK_PROTOCOL": "tls",
    "WATCHERS": "n1:9108",
}


def commands(unit: str) -> list[list[str]]:
    text = (UNITS / unit).read_text().replace("\\\n", " ").replace("%H", "n17").replace("%i", "3")
    lines = re.findall(r"^Exec\w+=(.*)$", text, re.MULTILINE)
    assert lines
    return [shlex.split(re.sub(r"\$\{(\w+)\}", lambda found: VALUES[found[1]], line)) for line in lines]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units as `install.sh` puts them, with programs that are here."""
    root = tmp_path_factory.mktemp("root")
    subprocess.run(
        [UNITS / "install.sh", "--units"], env={"DESTDIR": str(root), "PATH": "/usr/bin:/bin"}, check=True
    )
    found = root / "etc" / "systemd" / "system"
    for template, name in NAMES.items():
        text = (found / template).read_text()
        (found / name).write_text(text.replace("/opt/dump-ingest/bin", str(Path(sys.executable).parent)))
    return root


def analyze(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    units = installed / "etc" / "systemd" / "system"
    paths = [str(units / name) for name in NAMES.values()]
    return subprocess.run(
        ["systemd-analyze", *words, *paths],
        env={"SYSTEMD_UNIT_PATH": f"{units}:", "PATH": "/usr/bin:/bin", "SYSTEMD_EMOJI": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_systemd_understands_every_line(installed: Path) -> None:
    needs("systemd-analyze")
    timer = installed / "etc" / "systemd" / "system" / "dump-ingest-gc.timer"
    done = analyze(installed, "verify", "--man=no", str(timer))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_units_are_as_shut_off_as_the_guide_says(installed: Path) -> None:
    needs("systemd-analyze")
    done = analyze(installed, "security", "--offline=true", "--no-pager")
    scores = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert len(scores) == len(NAMES), done.stderr
    assert max(map(float, scores)) <= EXPOSURE
    guide = (UNITS.parents[1] / "docs" / "deployment.md").read_text()
    assert f"exposure level of {EXPOSURE}" in guide


@pytest.mark.parametrize("unit", NAMES)
def test_commands_of_units_parse(unit: str) -> None:
    for words in commands(unit):
        assert words[0].startswith("/opt/dump-ingest/bin/")
        assert_parses(words)


@pytest.mark.parametrize("unit", NAMES)
def test_variables_of_units_are_settings(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    common = (UNITS / "dump-ingest-.service.d" / "10-common.conf").read_text()
    text = (common + (UNITS / unit).read_text()).replace("%H", "n17")
    words = [word for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE) for word in line.split()]
    assert_settings(dict(word.split("=", 1) for word in words), monkeypatch)


@pytest.mark.parametrize("file", sorted((UNITS / "default").iterdir()), ids=lambda file: file.name)
def test_variables_of_environment_files_are_settings(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_settings(assignments(file.read_text()), monkeypatch)


@pytest.mark.parametrize("unit", NAMES)
def test_settings_of_one_service_win_over_those_of_the_host(unit: str) -> None:
    """The last file wins, and what a drop-in adds comes last."""
    files = re.findall(r"^EnvironmentFile=-?(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert files[0] == "/etc/default/dump-ingest"
    assert len(files) == 2
    assert "EnvironmentFile=" not in (UNITS / "dump-ingest-.service.d" / "10-common.conf").read_text()


@pytest.mark.parametrize("unit", NAMES)
def test_units_come_back_whatever_they_exit_with(unit: str) -> None:
    """Dask workers exit with 0 when the scheduler goes away."""
    common = (UNITS / "dump-ingest-.service.d" / "10-common.conf").read_text()
    assert "Restart=always" in common
    assert "StartLimitIntervalSec=0" in common
    assert "Restart=" not in (UNITS / unit).read_text()
    assert (UNITS / f"{unit}.d").exists() == (unit == ONCE)


@pytest.mark.parametrize(
    "script",
    sorted((UNITS.parent).rglob("*.sh")) + sorted(UNITS.parent.rglob("*.sbatch")),
    ids=lambda script: script.name,
)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), "--external-sources", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=script.parent,
    )
    assert done.returncode == 0, done.stdout


# The guide for operators: the commands that it gives.


DOCS = Path(__file__).parents[3] / "docs"
DEPLOYMENT = (DOCS / "deployment.md").read_text()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the guide makes with openssl."""
    directory = tmp_path_factory.mktemp("tls")
    [script] = re.findall(r"^```bash\n(.*?)^```$", DEPLOYMENT, re.MULTILINE | re.DOTALL)
    subprocess.run(["bash", "-euc", script], cwd=directory, check=True, capture_output=True)
    return directory


def test_keys_are_their_owners_alone(certificates: Path) -> None:
    for name in ("ca.key", "tls.key"):
        assert (certificates / name).stat().st_mode & 0o077 == 0


@pytest.mark.dask
def test_dask_lets_in_who_has_a_certificate_of_the_guide(certificates: Path) -> None:
    made = {"tls_ca_file": str(certificates / "ca.pem"), "require_encryption": True}
    for role in ("scheduler", "worker", "client"):
        made[f"tls_{role}_cert"] = str(certificates / "tls.pem")
        made[f"tls_{role}_key"] = str(certificates / "tls.key")
    security = Security(**made)
    options = {
        "processes": False,
        "n_workers": 1,
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
    }
    with LocalCluster(protocol="tls", security=security, **options) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with Client(address, security=security, set_as_default=False) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        without = Security(tls_ca_file=made["tls_ca_file"], require_encryption=True)
        with pytest.raises((OSError, TypeError, RuntimeError)):
            Client(address, security=without, timeout=2, set_as_default=False)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DEPLOYMENT, re.MULTILINE | re.DOTALL)


def test_values_of_the_guide_give_two_workers_on_each_host() -> None:
    [text] = blocks("yaml")
    rendered = objects(yaml.safe_load(text) | {"dask": {"tls": {"source": "certManager"}}})
    pod = find(rendered, "DaemonSet", "-watcher")["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["initContainers"]] == ["worker-0", "worker-1"]
    for name in re.findall(r"(?:ds|deploy|cronjob)/run1-([\w-]+)", DEPLOYMENT):
        assert [manifest for manifest in rendered if manifest["metadata"]["name"] == f"run1-{name}"], name


def test_policy_of_the_guide_permits_multipart_uploads() -> None:
    lifecycle, policy, *_ = map(json.loads, blocks("json"))
    assert "AbortIncompleteMultipartUpload" in lifecycle["Rules"][0]
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert {"s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"} <= actions


# What ingesting the dumps of a job takes.


def test_the_page_has_the_current_table() -> None:
    page = PAGE.read_text()
    assert table(JOBS) in page
    assert with_table(page) == page
    assert max(job.ranks for job in JOBS) == 10_000


@given(st.integers(1, 20_000), st.floats(1, 1e12), st.floats(0.1, 1e5), st.floats(1.1, 10))
def test_more_to_do_never_takes_less(ranks: int, step_bytes: float, every_s: float, more: float) -> None:
    base = size(Job(ranks, step_bytes, every_s))
    for other in (
        size(Job(ranks, step_bytes * more, every_s)),
        size(Job(ranks, step_bytes, every_s / more)),
        size(Job(ranks * 2, step_bytes, every_s)),
    ):
        assert other.workers >= base.workers >= 1
        assert other.upload > base.upload
        assert other.puts_per_s >= base.puts_per_s
        assert other.dollars_per_month > base.dollars_per_month
