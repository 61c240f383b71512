"""Reads of S3 without the client around them, which takes five times the processor time of the request.

The client makes the first read of each bucket. From its request these reads learn where the bucket is and for
what region requests are signed. Each is one request, signed by AWS Signature Version 4
(https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html), over the connections of the
client. Whatever is answered but the object, or that it does not exist, the client asks again: with its
retries, redirections and errors.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

from workers.store.backends.s3_session import S3Listener
from workers.store.objects import REQUESTS_AT_ONCE

_NAME = "_dump_ingest_direct"
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=[^,]+/\d{8}/([^/,]+)/s3/aws4_request,")
#: Headers of a request for an object that say nothing about the object.
_PLAIN = frozenset(["x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode"])
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: Requests of the client that are remembered until the read that made them has ended.
_REMEMBERED = 2 * REQUESTS_AT_ONCE


@dataclass(frozen=True, slots=True)
class Credentials:
    """What signs requests; the names are those of botocore."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """Where a bucket is, and for what region requests to it are signed."""

    origin: str
    """Scheme and host, such as `http://127.0.0.1:8000`."""
    host: str
    """The header `Host`."""
    path: str
    """Before the quoted key."""
    region: str

    @classmethod
    def of_request(cls, url: str, headers: Any, quoted_key: str) -> BucketPlace | None:
        """Return where the bucket is from which a request reads a key; None if it is not a plain one."""
        parts = urlsplit(url)
        signed = _SIGNED.match(_text(headers.get("Authorization", "")))
        names = {name.lower() for name in headers.keys() if name.lower().startswith("x-amz-")}  # noqa: SIM118  (the headers of botocore iterate over pairs)
        if signed is None or parts.query or not parts.path.endswith(f"/{quoted_key}") or names - _PLAIN:
            return None
        is_default = parts.port in (None, _DEFAULT_PORTS.get(parts.scheme))
        return cls(
            f"{parts.scheme}://{parts.netloc}",
            str(parts.hostname) if is_default else parts.netloc,
            parts.path.removesuffix(quoted_key),
            signed[1],
        )


def signed_headers(
    place: BucketPlace, path: str, credentials: Credentials, *, now_s: float, byte_range: str = ""
) -> dict[str, str]:
    """Return the headers of a GET, signed.

    Args:
        place: the bucket.
        path: of the URL, quoted.
        credentials: those of the client.
        now_s: when it is sent, as Unix time.
        byte_range: the header `Range`; "" for the whole object.
    """
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    scope = f"{at[:8]}/{place.region}/s3/aws4_request"
    headers = {"host": place.host}
    if byte_range:
        headers["range"] = byte_range
    headers |= {"x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": at}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(headers)  # in alphabetic order, as they were added
    canonical = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"GET\n{path}\n\n{canonical}\n{names}\n{_EMPTY_SHA256}"
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = _signing_key(credentials.secret_key, at[:8], place.region)
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers


@lru_cache(maxsize=8)
def _signing_key(secret: str, date: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    return key


class DirectReads:
    """The reads of one file system of s3fs. They run on its event loop."""

    def __init__(self, file_system: Any) -> None:
        self._fs = file_system
        self._places: dict[str, BucketPlace] = {}
        self._requests: deque[tuple[str, Any]] = deque(maxlen=_REMEMBERED)

    @classmethod
    def attach(cls, file_system: Any) -> DirectReads:
        """Return the reads of a file system to which an `S3Listener` was attached.

        Without one, as with a file system that somebody else connected before, the client makes every read.
        """
        known: DirectReads | None = getattr(file_system, _NAME, None)
        if known is not None:
            return known
        reads = cls(file_system)
        if S3Listener.of(file_system) is not None:
            file_system.session.register("before-send.s3.GetObject", reads.remember)
        setattr(file_system, _NAME, reads)
        return reads

    def remember(self, request: Any = None, **_: object) -> None:
        """Note a request that the client is about to send. Called by botocore."""
        if request is not None:
            self._requests.append((str(request.url), request.headers))

    async def read_many(self, paths: Sequence[str], **options: Any) -> list[bytes | BaseException]:
        """Return the objects, or why they cannot be read, in the order of `paths`."""
        turns = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def read(path: str) -> bytes:
            async with turns:
                return await self.read(path, **options)

        return await asyncio.gather(*map(read, paths), return_exceptions=True)

    async def read(
        self, path: str, start: int | None = None, stop: int | None = None, **options: Any
    ) -> bytes:
        """Return an object, or a part of it.

        Args:
            path: as s3fs has it.
            start: of the part; from the end if negative.
            stop: the end of the part.
            options: of s3fs, for a read by the client.

        Raises:
            FileNotFoundError: it does not exist.
        """
        bucket, key, version = self._fs.split_path(path)
        quoted = quote(key, safe="/~")
        place = None if version else self._places.get(bucket)
        if place is not None:
            data = await self._read_directly(place, path, quoted, start, stop)
            if data is not None:
                return data
        data = bytes(await self._fs._cat_file(path, start=start, end=stop, **options))  # noqa: SLF001 (a file system's own asynchronous form)
        if place is None and not version:
            self._learn(bucket, quoted)
        return data

    async def _read_directly(
        self, place: BucketPlace, path: str, quoted: str, start: int | None, stop: int | None
    ) -> bytes | None:
        """Return what `read` returns; None if the client should ask."""
        client = self._fs._s3  # noqa: SLF001 (the public attribute connects anew)
        if client is None or (start is not None and start < 0 and stop is not None):
            return None
        byte_range = "" if start is None and stop is None else _byte_range(start, stop)
        url_path = f"{place.path}{quoted}"
        try:
            credentials = await client._request_signer._credentials.get_frozen_credentials()  # noqa: SLF001 (botocore has no other way)
            headers = signed_headers(
                place,
                url_path,
                Credentials(credentials.access_key, credentials.secret_key, credentials.token),
                now_s=time.time(),
                byte_range=byte_range,
            )
            from botocore.awsrequest import AWSPreparedRequest  # deferred: as `S3Listener.attach` does

            request = AWSPreparedRequest("GET", f"{place.origin}{url_path}", headers, None, False)  # noqa: FBT003 (positional in botocore)
            answer = await client._endpoint.http_session.send(request)  # noqa: SLF001 (the connections of the client)
            data = bytes(await answer.content)
        except Exception:  # noqa: BLE001 (whatever it was, the client asks again and says what is wrong)
            return None
        listener = S3Listener.of(self._fs)
        if listener is not None:
            listener.receive({"headers": answer.headers})
        if answer.status_code == (206 if byte_range else 200):
            return data
        if answer.status_code == 404 and b"<Code>NoSuchKey</Code>" in data:
            raise FileNotFoundError(path)
        return None

    def _learn(self, bucket: str, quoted: str) -> None:
        """Note where a bucket is, from the request by which the client has just read a key of it."""
        for url, headers in reversed(self._requests):
            place = BucketPlace.of_request(url, headers, quoted)
            if place is not None:
                self._places[bucket] = place
                self._requests.clear()
                return


def _byte_range(start: int | None, stop: int | None) -> str:
    """Return the header `Range` of a part from `start` to `stop`; a negative start is that from the end."""
    if start is not None and start < 0:
        return f"bytes={start}"
    return f"bytes={start or 0}-{'' if stop is None else stop - 1}"


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
