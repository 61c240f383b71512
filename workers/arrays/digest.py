"""Digests of payload bytes.

XXH3-128 (xxHash 0.8, https://github.com/Cyan4973/xxHash) over the payload as the dump held it, in its
canonical big-endian form of 16 bytes. It does not depend on chunks, codecs or shards, so it survives
re-encoding. A tensor that is read in pieces is digested piece by piece, in order, with the same result.
"""

from __future__ import annotations

import xxhash

DIGEST_BYTES = 16


def new_digest() -> xxhash.xxh3_128:
    """Return a running digest with `update(buffer)`, `digest()` and `hexdigest()`."""
    return xxhash.xxh3_128()


#: Returns the 16-byte digest of bytes, or of another buffer.
digest = xxhash.xxh3_128_digest
