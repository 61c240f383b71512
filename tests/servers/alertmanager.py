"""Run a real Alertmanager, and receive the webhooks that it calls."""

import http.client
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import yaml

from tests.servers.http import HttpServer, Request
from tests.servers.process import LoopbackServer, answers, free_port, http_get

#: Debian gives the program another name than upstream.
_PROGRAM = "alertmanager" if shutil.which("alertmanager") else "prometheus-alertmanager"
PROGRAMS = (_PROGRAM, "amtool")


class Webhooks(HttpServer):
    """Receives webhooks on loopback and keeps their messages, for the duration of the `with` block."""

    def __init__(self) -> None:
        super().__init__(self._keep)
        self.messages: list[tuple[str, dict[str, Any]]] = []
        """The path of each call, and the message."""

    def _keep(self, request: Request) -> tuple[int, bytes]:
        self.messages.append((request.path, json.loads(request.body)))
        return 200, b""


class Alertmanager(LoopbackServer):
    """An Alertmanager with a given configuration, in which only the hosts of webhooks are replaced."""

    def __init__(self, config: Path) -> None:
        self._config = yaml.safe_load(config.read_text())
        self._webhooks = Webhooks()
        for receiver in self._config["receivers"]:
            for webhook in receiver["webhook_configs"]:
                webhook["url"] = f"{self._webhooks.url}/{webhook['url'].rpartition('/')[2]}"

    @property
    def address(self) -> str:
        """The host and port."""
        return f"127.0.0.1:{self._port}"

    @property
    def messages(self) -> list[tuple[str, dict[str, Any]]]:
        """The messages that it has sent so far, each with the path of its webhook."""
        return list(self._webhooks.messages)

    def received(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """Return the first alert that was sent so far for which `wanted` is true; None if there is none."""
        alerts = (alert for _, message in self.messages for alert in message["alerts"])
        return next((dict(alert) for alert in alerts if wanted(alert)), None)

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], *, timeout_s: float) -> dict[str, Any]:
        """Return the first alert for which `wanted` is true. Raise TimeoutError if none comes in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (alert := self.received(wanted)) is not None:
                return alert
            time.sleep(0.1)
        raise TimeoutError(f"no such alert within {timeout_s:g} s; messages: {self.messages}")

    def tell(self, alerts: Sequence[Mapping[str, str]]) -> None:
        """Let alerts fire, given by their labels, as Prometheus would."""
        body = json.dumps([{"labels": labels} for labels in alerts])
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)) as connection:
            connection.request("POST", "/api/v2/alerts", body, {"Content-Type": "application/json"})
            assert connection.getresponse().status == http.client.OK

    def active(self) -> list[tuple[str, dict[str, str]]]:
        """Return the alerts that nothing mutes: the receiver and the labels of each."""
        _, body = http_get(self._port, "/api/v2/alerts?inhibited=false&silenced=false")
        return [(one["receivers"][0]["name"], one["labels"]) for one in json.loads(body)]

    def __enter__(self) -> Self:
        self._webhooks.__enter__()
        return super().__enter__()

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        self._webhooks.__exit__(*failure)

    def _bring_up(self, root: Path) -> None:
        self._port = free_port()
        config = root / "alertmanager.yml"
        config.write_text(json.dumps(self._config))  # JSON is YAML
        argv = [
            _PROGRAM,
            f"--config.file={config}",
            f"--storage.path={root / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--cluster.listen-address=",
        ]
        self._servers.start("alertmanager", argv)
        self._servers.wait_for("alertmanager", lambda: answers(self._port, "/-/ready"), timeout_s=30)
