"""S3 as store, through s3fs: an object is one request, large ones go in parts, many are deleted at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import fsspec

from workers.host.wording import counted
from workers.model import MIB
from workers.store.backends.fsspec_objects import FsspecObjects
from workers.store.backends.s3_session import S3Listener
from workers.store.model import StoreAddress
from workers.store.objects import REQUESTS_AT_ONCE, UnfinishedUpload

PROTOCOLS = ("s3://", "s3a://")
#: Objects of two parts or more go to S3 part by part, `_PARTS_AT_ONCE` at a time. That bounds the memory of
#: the client, and what is sent again after a fault. For smaller ones it only costs two more requests.
_PART_NBYTES = 32 * MIB
_PARTS_AT_ONCE = 2
#: What S3 deletes in one request, and how often a request is sent for objects that a busy gateway refuses.
_DELETED_AT_ONCE = 1000
_DELETE_ATTEMPTS = 3


#: How long to wait for a connection, and for the next bytes of an answer, in seconds; and how often a request
#: is sent, by botocore and around that by s3fs, which also asks again for a body that broke off. So a request
#: ends within 3 x 3 x 15 s and pauses, unless its deadline comes first. Left alone it would be 5 x 5.
_CONNECT_S, _READ_S = 5, 15
_ATTEMPTS = 3


class S3Objects(FsspecObjects):
    """Objects in a bucket of S3, or of a gateway that speaks its protocol."""

    tells_progress = True

    # s3fs asks for the size of an object in a separate request first, unless it is to fetch it in one.
    _read_options: ClassVar[Mapping[str, Any]] = {"max_concurrency": 1}
    _write_options: ClassVar[Mapping[str, Any]] = {
        "chunksize": _PART_NBYTES,
        "max_concurrency": _PARTS_AT_ONCE,
    }

    def __init__(self, address: StoreAddress) -> None:
        """Prepare access to `address`; nothing is read or written yet.

        Raises:
            UsageError: an option is unknown.
        """
        super().__init__(address)
        self._fs.retries = _ATTEMPTS
        S3Listener.attach(self._fs)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove several objects, up to a thousand in one request."""
        with self._errors("delete", counted(len(keys), "object")):
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                self._delete_at_once(keys[start : start + _DELETED_AT_ONCE])

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:
        """Return the uploads in parts below `prefix` that are not completed."""
        bucket, base, _ = self._fs.split_path(f"{self._path(prefix)}/")
        uploads: list[UnfinishedUpload] = []
        page: dict[str, Any] = {"IsTruncated": True}
        markers: dict[str, str] = {}
        with self._errors("list the uploads of", prefix):
            while page.get("IsTruncated"):
                page = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=base, **markers)
                uploads += [self._measured(bucket, upload) for upload in page.get("Uploads", [])]
                markers = {
                    "KeyMarker": page.get("NextKeyMarker", ""),
                    "UploadIdMarker": page.get("NextUploadIdMarker", ""),
                }
        return uploads

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """End an upload in parts."""
        bucket, key, _ = self._fs.split_path(self._path(upload.key))
        with self._errors("abort the upload of", upload.key), suppress(FileNotFoundError):
            self._fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.upload_id)

    def _measured(self, bucket: str, upload: Mapping[str, Any]) -> UnfinishedUpload:
        """Return an upload with the size of its parts; of one that has ended meanwhile, with none."""
        key, upload_id = str(upload["Key"]), str(upload["UploadId"])
        nbytes, written_at = 0, upload["Initiated"].timestamp()
        page: dict[str, Any] = {"IsTruncated": True}
        marker: dict[str, int] = {}
        with suppress(FileNotFoundError):
            while page.get("IsTruncated"):
                page = self._fs.call_s3("list_parts", Bucket=bucket, Key=key, UploadId=upload_id, **marker)
                for part in page.get("Parts", []):
                    nbytes += int(part["Size"])
                    written_at = max(written_at, part["LastModified"].timestamp())
                marker = {"PartNumberMarker": int(page.get("NextPartNumberMarker", 0))}
        _, base, _ = self._fs.split_path(f"{self._base}/")
        return UnfinishedUpload(key.removeprefix(base), upload_id, nbytes, written_at)

    def _client_options(self, options: dict[str, Any]) -> dict[str, Any]:
        # What a configuration file of fsspec sets for the client stays, unless an option sets it, too.
        configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        client = {
            "max_pool_connections": REQUESTS_AT_ONCE,
            "connect_timeout": _CONNECT_S,
            "read_timeout": _READ_S,
            "retries": {"total_max_attempts": _ATTEMPTS},
            **(options.get("config_kwargs") or configured),
        }
        if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
            # The checksums that botocore sends otherwise are sent as trailers over HTTPS, which Ceph and
            # others refuse. Our objects have checksums of their own.
            client.setdefault("request_checksum_calculation", "when_required")
        # Listings cached in this process would hide what others have written since.
        return {"use_listings_cache": False, **options, "config_kwargs": client}

    def _delete_at_once(self, keys: Sequence[str]) -> None:
        """Remove objects in one request. Not by `rm` of s3fs, which does not report what was refused."""
        bucket = self._fs.split_path(self._base)[0]
        left = [self._fs.split_path(self._path(key))[1] for key in keys]
        for _ in range(_DELETE_ATTEMPTS):
            request = {"Objects": [{"Key": key} for key in left], "Quiet": True}
            refused = self._fs.call_s3("delete_objects", Bucket=bucket, Delete=request).get("Errors", [])
            left = [refusal["Key"] for refusal in refused]
            if not left:
                return
            code, message = str(refused[0].get("Code", "")), str(refused[0].get("Message", ""))
            if code == "AccessDenied":
                raise PermissionError(f"{left[0]}: {code} {message}")
        raise OSError(f"{left[0]} and {len(left) - 1} more: {code} {message}")
