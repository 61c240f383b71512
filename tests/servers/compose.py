"""Run the services of a Compose file with Podman: in the order and under the conditions that the file names.

Podman's own tools for Compose wait for no condition. What the file builds or pulls is replaced by images that
are there.
"""

from __future__ import annotations

import json
import shutil
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.servers.containers import Container, Podman

_START_S = 180
#: By key of a service: the option of Podman that takes the same value.
_OPTIONS = {"user": "user", "working_dir": "workdir", "mem_limit": "memory", "restart": "restart"}


class Compose:
    """The services of one file, in a network of their own."""

    def __init__(self, engine: Podman, file: Path, *, environment: Mapping[str, str]) -> None:
        self._engine = engine
        self._directory = file.parent
        self._document: dict[str, Any] = yaml.safe_load(file.read_text())
        self._environment = environment
        """Replaces variables of the services."""
        self._network = f"compose-{engine.label[-12:]}"
        self.containers: dict[str, list[Container]] = {}
        """The containers that run, or have run, by service."""
        engine("network", "create", "--label", engine.label, self._network)
        for volume in self._document["volumes"]:
            engine("volume", "create", "--label", engine.label, self._volume(volume))

    @property
    def gateway(self) -> str:
        """The address of this machine in the network of the services."""
        [network] = json.loads(self._engine("network", "inspect", self._network))
        return str(network["subnets"][0]["gateway"])

    def up(self, name: str, image: str, *options: object) -> None:
        """Start a service when what it depends on is as it asks for; all of that must have been started."""
        service = self._document["services"][name]
        for other, how in service.get("depends_on", {}).items():
            for container in self.containers.get(other, ()):
                self._wait(container, how["condition"])
        replicas = service.get("deploy", {}).get("replicas", 1)
        words = [*self._options(name, service), *options]
        self.containers[name] = [
            self._engine.start(image, *service.get("command", ()), options=words) for _ in range(replicas)
        ]

    def run(self, name: str, image: str, options: Sequence[object], *command: object) -> str:
        """Run the service once with another command; return what it prints."""
        service = self._document["services"][name]
        return self._engine("run", "--rm", *self._options(name, service), *options, image, *command)

    def _options(self, name: str, service: Mapping[str, Any]) -> Iterator[str]:
        """Yield the options of `podman run` that say what the file says of a service."""
        yield from (f"--network={self._network}", f"--network-alias={name}")
        environment = {**service.get("environment", {}), **self._environment}
        yield from (f"--env={variable}={value}" for variable, value in environment.items())
        yield from (f"--tmpfs={place}" for place in service.get("tmpfs", ()))
        yield from (f"--cap-drop={each}" for each in service.get("cap_drop", ()))
        yield from (f"--cap-add={each}" for each in service.get("cap_add", ()))
        yield from (f"--security-opt={each.replace(':true', '')}" for each in service.get("security_opt", ()))
        yield from (f"--volume={self._mount(mount)}" for mount in service.get("volumes", ()))
        if service.get("read_only"):
            yield "--read-only"
        yield from (f"--{option}={service[key]}" for key, option in _OPTIONS.items() if key in service)
        if "entrypoint" in service:
            yield f"--entrypoint={json.dumps(service['entrypoint'])}"
        if service.get("healthcheck", {}).get("disable"):
            yield "--no-healthcheck"

    def _mount(self, mount: str) -> str:
        """Return a mount with the volume of this network, or the path on this machine, in front."""
        source, _, rest = mount.partition(":")
        if source in self._document["volumes"]:
            return f"{self._volume(source)}:{rest}"
        return f"{(self._directory / source).resolve()}:{rest}"

    def _volume(self, name: str) -> str:
        return f"{self._network}-{name}"

    def down(self) -> None:
        """End every service."""
        for container in (each for containers in self.containers.values() for each in containers):
            container.remove()

    @staticmethod
    def _wait(container: Container, condition: str) -> None:
        if condition == "service_completed_successfully":
            assert container.wait(timeout_s=_START_S) == 0, container.logs
        else:
            container.wait_until(container.is_healthy, timeout_s=_START_S)


@contextmanager
def forwarded(address: str, port: int, to: int) -> Iterator[None]:
    """Let containers reach a server on loopback: forward an address of this machine to it."""

    class Forward(socketserver.BaseRequestHandler):
        """Forwards one connection."""

        def handle(self) -> None:
            """Copy in both directions until both ends are silent."""
            with socket.create_connection(("127.0.0.1", to)) as server:
                back = threading.Thread(target=_copy, args=(server, self.request))
                back.start()
                _copy(self.request, server)
                back.join()

    with socketserver.ThreadingTCPServer((address, port), Forward, bind_and_activate=False) as forwarding:
        forwarding.daemon_threads = True
        forwarding.allow_reuse_address = True
        forwarding.server_bind()
        forwarding.server_activate()
        thread = threading.Thread(target=forwarding.serve_forever)
        thread.start()
        try:
            yield
        finally:
            forwarding.shutdown()
            thread.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Copy from one connection to another until its end."""
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def program_options(program: str) -> Sequence[str]:
    """Return the options with which a program of this machine runs in an image of the same distribution."""
    path = shutil.which(program)
    assert path is not None
    return (f"--volume={path}:{path}:ro", f"--entrypoint={path}")
