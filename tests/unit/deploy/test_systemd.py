"""The units: as systemd reads them, and with the commands that they start."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import assert_parses, assert_settings, assignments, needs

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
