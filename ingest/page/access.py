"""Who may look: by address, by token, or by what a proxy says of the user."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from workers.errors import UsageError

COOKIE = "dump_ingest_page"
#: Names under which a browser on the same host reaches a server on loopback.
_LOOPBACK_NAMES = frozenset(["localhost", "127.0.0.1", "::1"])
_MIN_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen at."""

    host: str
    port: int

    @classmethod
    def parse(cls, words: str) -> Self:
        """Return the address of `HOST:PORT`; port 0 is any free one.

        Raises:
            UsageError: it is not one.
        """
        host, colon, port = words.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise UsageError(f"{words!r} is not an address", hint="HOST:PORT, such as 127.0.0.1:8000.")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def shown(self) -> str:
        """The address as it is in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must have."""

    token: str = ""
    """Given as `Authorization: Bearer TOKEN`, or once as `?token=TOKEN`, which sets a cookie."""
    header: str = ""
    """The header in which a proxy names the user whom it has let in."""
    hosts: frozenset[str] = frozenset()
    """The names by which the page may be called; any if empty.

    A site whose name is made to resolve to this address cannot read the page: the browser sends that name.
    """

    def knows_host(self, host: str) -> bool:
        """Return whether the page may be called by this name, given as in the header `Host`."""
        try:
            return not self.hosts or (urlsplit(f"//{host}").hostname or "") in self.hosts
        except ValueError:  # such as `[name`, which no browser sends
            return False

    def admits(self, headers: Mapping[str, str], cookie: str) -> bool:
        """Return whether a request with these headers and this cookie may see the page."""
        if self.header and not headers.get(self.header, "").strip():
            return False
        if not self.token:
            return True
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return hmac.compare_digest(cookie.encode(), self.cookie.encode())

    def is_token(self, given: str) -> bool:
        """Return whether this is the token, in a time that says nothing about it."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    @property
    def cookie(self) -> str:
        """What the cookie holds: not the token, but a proof of it."""
        return hmac.new(self.token.encode(), COOKIE.encode(), hashlib.sha256).hexdigest()


def access_for(
    listen: Listen, token_file: Path | None, trust_header: str | None, base_url: str | None, *, is_open: bool
) -> Access:
    """Return the access control that requests must pass.

    Args:
        listen: where the server listens.
        token_file: holds the token.
        trust_header: the header that a proxy sets.
        base_url: by what URL people reach the page.
        is_open: whether anybody who reaches the address may look.

    Raises:
        UsageError: other hosts could look without any proof; or the token cannot be read, or is too short.
    """
    token = _token(token_file)
    if not listen.is_loopback and not (token or trust_header or is_open):
        raise UsageError(
            f"{listen.shown} is open to other hosts, which could then read every tensor",
            hint="--token-file FILE asks for a token, --trust-header NAME relies on a proxy, "
            "--allow-anyone asks for nothing.",
        )
    is_for_loopback = listen.is_loopback and not token and not is_open
    return Access(token, trust_header or "", _loopback_names(base_url) if is_for_loopback else frozenset())


def _loopback_names(base_url: str | None) -> frozenset[str]:
    """Return by what names people on this host reach the page."""
    return _LOOPBACK_NAMES | {urlsplit(base_url or "//localhost").hostname or ""}


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read the token in {path}: {exc}") from exc
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"{path}: the token has fewer than {_MIN_TOKEN} printable ASCII characters",
            hint="openssl rand -hex 24 makes one.",
        )
    return token
