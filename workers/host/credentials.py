"""Credentials belong in the environment: recognise them where they do not belong, and never print them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workers.errors import UsageError

_SECRET_WORDS = ("secret", "password", "token", "key", "credential")
#: Names a key of the key management service; it is of no use to a thief.
_NOT_SECRET = frozenset(["SSEKMSKeyId"])
#: `user:password@`. The password may contain slashes, like AWS secret keys; a port is not a password.
_IN_AUTHORITY = re.compile(r"(?<=://)[^/@:\s]*:(?!\d+(?:/|$))[^@\s]*@")
#: A parameter of a signed URL.
_IN_QUERY = re.compile(
    r"([?&;](?:sig|[^=&;?#\s]*(?:signature|secret|password|token|key|credential)[^=&;?#\s]*)=)[^&;#\s]+",
    re.IGNORECASE,
)
_MASK = "***"


def _looks_secret(name: str) -> bool:
    return name not in _NOT_SECRET and any(word in name.lower() for word in _SECRET_WORDS)


def masked(text: str) -> str:
    """Return a text without the credentials of the URLs in it.

    >>> masked("s3://AKIA:abc/def@bucket/run.zarr")
    's3://***@bucket/run.zarr'
    """
    return _IN_QUERY.sub(rf"\1{_MASK}", _IN_AUTHORITY.sub(f"{_MASK}@", text))


def masked_values(value: Any) -> Any:
    """Return plain values without credentials: under names that look secret, and in URLs."""
    if isinstance(value, Mapping):
        return {
            name: _MASK
            if _looks_secret(str(name)) and not isinstance(below, Mapping)
            else masked_values(below)
            for name, below in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked_values(below) for below in value]
    return masked(value) if isinstance(value, str) else value


def refuse_in_url(url: str) -> None:
    """Refuse a URL that holds credentials.

    Raises:
        UsageError: it does; the message does not show them.
    """
    if masked(url) != url:
        raise UsageError(f"{masked(url)} holds credentials", hint=f"Put credentials into {_ENVIRONMENT}.")


def refuse_in_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a storage library that hold a credential, also in the options within them.

    Raises:
        UsageError: they do; the message has the name, and not the value.
    """
    for name, value in _all(options):
        if _looks_secret(name) or (isinstance(value, str) and masked(value) != value):
            raise UsageError(
                f"store option {name!r} looks like a credential",
                hint=f"Put credentials into {_ENVIRONMENT}: options are sent to the Dask workers and shown "
                "by `dump-ingest config show`.",
            )


_ENVIRONMENT = "the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...)"


def _all(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        yield str(name), value
        for below in value if isinstance(value, list | tuple) else [value]:
            if isinstance(below, Mapping):
                yield from _all(below)
