"""Other bytes with the same XXH3, of 64 and of 128 bits: what a hostile dump can make of any tensor.

XXH3 is not cryptographic. For inputs of more than 240 bytes, it adds up eight lanes of 64 bits over stripes
of 64 bytes (xxHash, "XXH3 algorithm overview"): to its own lane the product of the halves of `word ^ secret`,
and to the lane beside it the word. So in five stripes of the first block, before anything is scrambled, the
words of one lane can be replaced such that both sums stay.
"""

from __future__ import annotations

import struct

#: The beginning of the secret of XXH3 (xxhash.h, `XXH3_kSecret`).
_SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578")
_STRIPES, _STRIPE_NBYTES = 5, 64
_MASK = 2**64 - 1
_HALF = 2**32


def forged(payload: bytes) -> bytes:
    """Return other bytes of the same length, with the same XXH3. `payload` has more than 1024 bytes."""
    secrets = struct.unpack("<5Q", _SECRET)
    words = [struct.unpack_from("<Q", payload, _STRIPE_NBYTES * number)[0] for number in range(_STRIPES)]
    mixed = [word ^ secret for word, secret in zip(words, secrets, strict=True)]
    product = sum((word % _HALF) * (word // _HALF) for word in mixed) & _MASK
    # Words whose products, of (low half, high half), add up to that: 1 * low + 2^31 * high + 2^31 * high.
    low, high = product % _HALF, product // _HALF
    others = [(1, low), (2**31, high), (2**31, high)]
    made = [(top * _HALF + bottom) ^ secret for (bottom, top), secret in zip(others, secrets, strict=False)]
    # Two words with a product of zero, of which one half is free, make the sum of the words what it was.
    rest = (sum(words) - sum(made)) & _MASK
    only_low, only_high = secrets[3] // _HALF * _HALF, secrets[4] % _HALF
    fourth = only_low + (rest - only_high) % _HALF
    made += [fourth, only_high + ((rest - only_high - fourth) & _MASK) // _HALF * _HALF]
    forgery = bytearray(payload)
    for number, word in enumerate(made):
        struct.pack_into("<Q", forgery, _STRIPE_NBYTES * number, word)
    return bytes(forgery)
