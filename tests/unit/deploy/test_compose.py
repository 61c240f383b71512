"""The file of the tour in containers; tests/integration/test_podman.py runs its services."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import assert_parses, needs

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
