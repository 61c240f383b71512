"""The checksum of a commit: every byte of the `zarr.json` of a step counts, and damage may leave valid JSON.

It is the first attribute, `dump_ingest_crc32c`: eight hexadecimal digits, the crc32c of the document without
this attribute. Earlier versions wrote none, and drop it when they write a commit again.
"""

from __future__ import annotations

import google_crc32c

_BEGIN = b'{"zarr_format":3,"node_type":"group","attributes":{'
_NAME = b'"dump_ingest_crc32c":"'
_DIGITS, _END = 8, b'",'
_END_OF_CHECKSUM = len(_BEGIN) + len(_NAME) + _DIGITS + len(_END)


def with_checksum(document: bytes) -> bytes:
    """Return the `zarr.json` of a step with its checksum.

    Raises:
        ValueError: it does not begin as `metadata.encode` writes it.
    """
    if not document.startswith(_BEGIN):
        raise ValueError("this is not the metadata of a step")
    return _BEGIN + _attribute_for(document) + document[len(_BEGIN) :]


def without_checksum(data: bytes) -> bytes:
    """Return a `zarr.json` as it was before it got its checksum; as it is if it has none."""
    return _BEGIN + data[_END_OF_CHECKSUM:] if data.startswith(_BEGIN + _NAME) else data


def has_wrong_checksum(data: bytes) -> bool:
    """Return whether a `zarr.json` has a checksum that is not its own."""
    if not data.startswith(_BEGIN + _NAME):
        return False
    return data[len(_BEGIN) : _END_OF_CHECKSUM] != _attribute_for(without_checksum(data))


def _attribute_for(document: bytes) -> bytes:
    return b"%b%08x%b" % (_NAME, google_crc32c.value(document), _END)
