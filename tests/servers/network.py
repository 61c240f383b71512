"""Simulate several hosts on one machine with network namespaces.

Each host is on two networks: one with the other hosts, and one with the object store. A namespace has its
own interfaces, routes and byte counters. This needs Linux and root.
"""

import os
import re
import select
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.servers.process import run_tool

PROGRAMS = ("ip",)
_COUNTERS = "/sys/class/net/{interface}/statistics"


def _remove_leftovers() -> None:
    """Remove the networks of test runs that were killed: theirs have the same addresses."""
    for kind, directory in (("netns", Path("/run/netns")), ("link", Path("/sys/class/net"))):
        for name in sorted(path.name for path in directory.glob("t[0-9]*")):
            tag = re.match(r"t(\d+)(?:-|[ls]b$)", name)
            if tag and not Path("/proc", tag[1]).exists():
                run_tool(["ip", kind, "delete", name])


class Network:
    """Hosts that reach each other at `address(name)`, and a store on this machine at `store_address`.

    These are two separate networks, so the traffic of each can be measured.
    """

    store_address = "10.78.0.1"

    def __init__(self, hosts: list[str]) -> None:
        self._hosts = hosts
        # Kept short: the name of an interface has at most 15 characters.
        self._tag = f"t{os.getpid() % 100_000}"

    def __enter__(self) -> Self:
        _remove_leftovers()
        try:
            self._bring_up()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._take_down()

    def address(self, host: str) -> str:
        """Return the address at which the other hosts reach this one."""
        return f"10.77.0.{2 + self._hosts.index(host)}"

    def inside(self, host: str) -> list[str]:
        """Return the words to put before a command to run it on a host."""
        return ["ip", "netns", "exec", self._namespace(host)]

    def nbytes(self, host: str) -> int:
        """Return the number of bytes that a host has exchanged with the other hosts, in both directions."""
        counters = Path(_COUNTERS.format(interface=self._interface("l", host)))
        return sum(int((counters / name).read_text()) for name in ("rx_bytes", "tx_bytes"))

    def cut(self, host: str) -> None:
        """Disconnect a host from the other hosts, but not from the store."""
        run_tool(["ip", "link", "set", self._interface("l", host), "down"])

    def mend(self, host: str) -> None:
        """Connect a host with the other hosts again."""
        run_tool(["ip", "link", "set", self._interface("l", host), "up"])

    def _bring_up(self) -> None:
        for network, gateway in (("l", "10.77.0.1"), ("s", self.store_address)):
            bridge = self._interface(network, "")
            run_tool(["ip", "link", "add", bridge, "type", "bridge"])
            run_tool(["ip", "address", "add", f"{gateway}/24", "dev", bridge])
            run_tool(["ip", "link", "set", bridge, "up"])
        for number, host in enumerate(self._hosts):
            inside = ["ip", "-n", self._namespace(host)]
            run_tool(["ip", "netns", "add", self._namespace(host)])
            run_tool([*inside, "link", "set", "lo", "up"])
            for network, prefix in (("l", "10.77.0"), ("s", "10.78.0")):
                outer, inner = self._interface(network, host), f"eth-{network}"
                pair = [outer, "type", "veth", "peer", "name", inner, "netns", self._namespace(host)]
                run_tool(["ip", "link", "add", *pair])
                run_tool(["ip", "link", "set", outer, "master", self._interface(network, ""), "up"])
                run_tool([*inside, "address", "add", f"{prefix}.{2 + number}/24", "dev", inner])
                run_tool([*inside, "link", "set", inner, "up"])

    def _take_down(self) -> None:
        for host in self._hosts:
            with suppress(Exception):
                run_tool(["ip", "netns", "delete", self._namespace(host)])
        for network in ("l", "s"):
            with suppress(Exception):
                run_tool(["ip", "link", "delete", self._interface(network, "")])

    def _namespace(self, host: str) -> str:
        return f"{self._tag}-{host}"

    def _interface(self, network: str, host: str) -> str:
        number = self._hosts.index(host) if host else "b"
        return f"{self._tag}{network}{number}"


class Forwarder:
    """Forwards connections from an address of this machine to a port on its loopback interface."""

    def __init__(self, address: str, to_port: int) -> None:
        self._to_port = to_port
        self._socket = socket.create_server((address, 0))
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._copy, args=(client,), daemon=True).start()

    def _copy(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._to_port)) as server:
            peers = {client: server, server: client}
            while True:
                for ready in select.select(list(peers), [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    peers[ready].sendall(data)
