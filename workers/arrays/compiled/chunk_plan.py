"""What the entry that decodes chunks is told, and what it answers: see `workers.arrays.compiled.chunk_loops`.

A chunk of Blosc (c-blosc 1.21, README_CHUNK_FORMAT.rst) has a header, the place of each block, and the
blocks. A block has a stream for each byte of an element: its length, and its bytes.
"""

from __future__ import annotations

from typing import Final

#: Bytes of the elements whose bits can be shuffled.
ITEMSIZES: Final = (1, 2, 4, 8)
HEADER_NBYTES: Final = 16
#: Bytes of a place, and of a length.
LENGTH_NBYTES: Final = 4
#: Bytes of a stream before compression.
STREAM_NBYTES: Final = 128 * 1024
#: Bytes of a field of a plan.
WORD_NBYTES: Final = 8
#: The fields of a plan: the outcome; the addresses of the chunk, of the checksum at its end, and of memory
#: for the content; bytes of an element, and the number of blocks; the addresses of memory for the planes of a
#: block, of `crc32c_value`, of `LZ4_decompress_safe`, of what puts bits back, and of the next field; and from
#: that one on, room for the addresses of the planes of each byte.
(OUTCOME, CHUNK, END, TARGET, ITEMSIZE, BLOCKS, PLANES, CHECKSUM, INFLATE, UNSHUFFLE, COLUMNS_AT, COLUMNS) = (
    range(12)
)
#: How many fields a plan has.
FIELDS: Final = COLUMNS + max(ITEMSIZES)

#: What the entry says of a chunk: it is decoded; its checksum does not match; it ends within the places of
#: its blocks; a block begins within the header; a stream begins behind the end; a stream is too long; LZ4
#: cannot decode a stream.
(DECODED, BAD_CHECKSUM, ENDS_EARLY, IN_HEADER, BEHIND_END, TOO_LONG, DAMAGED_STREAM) = range(7)
