"""Run a real Prometheus that scrapes what a test exports."""

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from tests.servers.process import LoopbackServer, answers, free_port, http_get, run_tool

PROGRAMS = ("prometheus", "promtool")


@dataclass(frozen=True, slots=True)
class Sample:
    """One series in the result of a query, with its value at the time of the query."""

    labels: Mapping[str, str]
    value: float


class Prometheus(LoopbackServer):
    """A Prometheus that scrapes `targets` ("host:port") every second for the duration of the `with` block.

    `settings` replaces sections of its configuration, such as `global`.
    """

    def __init__(
        self,
        targets: Sequence[str] | Mapping[str, Sequence[str]],
        *,
        rules: Sequence[Path] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        jobs = targets if isinstance(targets, Mapping) else {"test": targets}
        self._config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path.resolve()) for path in rules],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(members)}]}
                for job, members in jobs.items()
            ],
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        """The address of its own pages."""
        return f"http://127.0.0.1:{self._port}"

    def query(self, expr: str) -> list[Sample]:
        """Evaluate a PromQL expression that gives an instant vector. Raise ValueError if it is invalid."""
        status, body = http_get(self._port, "/api/v1/query?" + urlencode({"query": expr}))
        answer = json.loads(body)
        if status != http.client.OK:
            raise ValueError(f"{expr}: {answer['error']}")
        return [Sample(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def wait_for(self, expr: str, *, timeout_s: float = 40) -> list[Sample]:
        """Return the first result of `expr` that is not empty. Raise TimeoutError if none comes in time."""
        deadline = time.monotonic() + timeout_s
        while not (samples := self.query(expr)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expr}: no result within {timeout_s:g} s; up: {self.query('up')}")
            time.sleep(0.1)
        return samples

    def _bring_up(self, root: Path) -> None:
        self._port = free_port()
        config = root / "prometheus.yml"
        config.write_text(json.dumps(self._config))  # JSON is YAML
        argv = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={root / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self._servers.start("prometheus", argv)
        self._servers.wait_for("prometheus", lambda: answers(self._port, "/-/ready"), timeout_s=30)


class StartPrometheus(Protocol):
    """The `prometheus` fixture: a function that starts a Prometheus, which runs until the test ends."""

    def __call__(
        self,
        targets: Sequence[str] | Mapping[str, Sequence[str]],
        *,
        rules: Sequence[Path] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> Prometheus:
        """Start it; it scrapes `targets` ("host:port", of one job or by job) and evaluates the rule files."""


def promtool_check_metrics(text: str) -> None:
    """Check an exposition with Prometheus' own linter. Raise ServerError if the linter complains."""
    run_tool(["promtool", "check", "metrics"], stdin=text)
