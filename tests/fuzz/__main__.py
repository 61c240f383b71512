"""Feed a decoder with bytes that are led by its own code, until it fails or the time is over.

    uv pip install atheris
    python -m tests.fuzz dump_data -max_total_time=300 [-rss_limit_mb=1024] [directory of samples]

The options are libFuzzer's. A failure is any error but the two that a decoder may raise, a file that its
tensors do not make again, too much memory or too much time; the input is then written to `crash-...`.
"""

import sys
from collections.abc import Callable, Sequence

import atheris

with atheris.instrument_imports(include=["workers.formats"]):
    from workers.errors import UnreadableTensor
    from workers.formats import dump_data, overflow
    from workers.formats.header import ReadAt, TensorHeader


def reader(content: bytes) -> ReadAt:
    return lambda offset, nbytes: content[offset : offset + nbytes]


def put_together(content: bytes, headers: Sequence[TensorHeader]) -> bytes:
    return b"".join(
        found.lead + content[found.offset : found.offset + found.nbytes] + found.tail for found in headers
    )


def read_dump_data(content: bytes) -> None:
    # Most lengths are wrong: so the bytes are tried as a header, too, with what payload it asks for.
    framed = len(content).to_bytes(8, "little") + content
    for each in (content, framed, framed + bytes(64), b"\x0a\x031.0" + content):
        try:
            headers = dump_data.read_headers(reader(each), len(each))
        except UnreadableTensor:
            continue
        assert not headers or put_together(each, headers) == each


def read_overflow(content: bytes) -> None:
    for parse in (overflow.parse, overflow.parse_json):
        try:
            parse(content).failures()
        except UnreadableTensor:
            continue


TARGETS: dict[str, Callable[[bytes], None]] = {"dump_data": read_dump_data, "overflow": read_overflow}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"{__doc__}\nDecoders: {', '.join(TARGETS)}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
