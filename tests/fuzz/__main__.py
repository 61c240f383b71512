"""Fuzz a decoder with inputs guided by the coverage of its code, until it fails or the time is over.

    uv pip install atheris
    python -m tests.fuzz dump_data -max_total_time=300 [-rss_limit_mb=1024] [directory of samples]

The options are libFuzzer's. A decoder fails if it raises an error other than DumpError and UnreadableTensor,
if the parts that it returns do not add up to the file, or if it uses too much memory or time. The input is
then written to `crash-...`.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from unittest.mock import patch

import atheris

with atheris.instrument_imports(
    include=["workers.dump.formats", "ingest.layouts", "ingest.reader.context.ir"]
):
    from ingest.layouts import cann, mindspore, msprobe, numerics, pytorch
    from ingest.layouts.tree import runs
    from ingest.reader.context import ir
    from workers.dump import paths
    from workers.dump.formats import (
        distcp,
        dump_data,
        npy,
        overflow,
        pt,
        pt_tree,
        safetensors,
        statistic_csv,
        tensor_proto,
    )
    from workers.dump.formats.header import ReadAt, TensorHeader, assemble
    from workers.dump.formats.pickle_machine import Machine
    from workers.dump.formats.tensor_proto import varint
    from workers.errors import DumpError, UnreadableTensor


def reader(content: bytes) -> ReadAt:
    return lambda offset, nbytes: content[offset : offset + nbytes]


def joined(content: bytes, headers: Sequence[TensorHeader]) -> bytes:
    """Return the file that the lead, payload and tail of each tensor add up to."""
    return b"".join(
        header.lead + content[header.offset : header.offset + header.nbytes] + header.tail
        for header in headers
        if header.view is None
    )


def read_dump_data(content: bytes) -> None:
    # The first bytes are rarely a valid length, so the input also serves as a header, with some payload.
    framed = len(content).to_bytes(8, "little") + content
    for variant in (content, framed, framed + bytes(64), b"\x0a\x031.0" + content):
        try:
            headers = dump_data.read_headers(reader(variant), len(variant))
        except UnreadableTensor:
            continue
        assert not headers or joined(variant, headers) == variant


def read_npy(content: bytes) -> None:
    # With the magic bytes and a length before the input, the decoder reads more of it.
    framed = npy.MAGIC + b"\x01\x00" + min(len(content), 65535).to_bytes(2, "little") + content
    for variant in (content, framed):
        read = partial(npy.read_headers, reader(variant), len(variant))
        with suppress(UnreadableTensor):
            assert joined(variant, read()) == variant
        same_alone(read, read)


#: What the decoders do without remembering anything of earlier inputs.
FORGETFUL = {
    (module, name): lru_cache(maxsize=0)(getattr(module, name).__wrapped__)
    for module, name in ((pt, "_described"), (safetensors, "_headers_of_alike"), (npy, "_parse_header_text"))
}


@contextmanager
def remembering_nothing() -> Iterator[None]:
    with ExitStack() as patches:
        for (module, name), function in FORGETFUL.items():
            patches.enter_context(patch.object(module, name, function))
        yield


def same_alone(read_headers: Callable[[], Sequence[TensorHeader]], alone: Callable[[], object]) -> None:
    """Check that a file is readable and the same with and without what is remembered, or is neither."""
    headers: object = None
    with suppress(UnreadableTensor):
        headers = read_headers()
    expected: object = None
    with remembering_nothing(), suppress(UnreadableTensor):
        expected = alone()
    assert headers == expected


def read_pt(content: bytes) -> None:
    read, nbytes = reader(content), len(content)
    with suppress(UnreadableTensor):
        assert joined(content, pt.read_headers(read, nbytes)) == content
    same_alone(
        lambda: pt.read_headers(read, nbytes), lambda: assemble(*pt.place_tensors(read, nbytes), read, nbytes)
    )


def read_distcp(content: bytes) -> None:
    chunks = {0: distcp.Chunk("a"), len(content) // 2: distcp.Chunk("b", {"offsets": [1]})}
    with suppress(UnreadableTensor):
        assert joined(content, distcp.read_headers(reader(content), len(content), chunks)) == content
    with suppress(UnreadableTensor):
        distcp.read_metadata(content)


def read_tensor_proto(content: bytes) -> None:
    for variant in (content, b"\x08\x02\x10\x01" + content):
        with suppress(UnreadableTensor):
            assert joined(variant, tensor_proto.read_headers(reader(variant), len(variant))) == variant


def read_logs(content: bytes) -> None:
    """Logs of statistics: rows of any text, and ranges of lines that lie in the log."""
    text = content.decode(errors="replace")
    head, tabs = b"2026-01-01 00:00:00,000 - INFO - a_weight_max", b" \t\t "
    line = head + tabs + b"iteration=000001" + tabs + b"value=" + content + b"\n"
    for variant in (content, line + content + line):
        list(numerics.read_te_lines("log", variant, "tensors"))
        end = 0
        for _, begin, behind, _ in runs(variant, numerics.TE_LINE):
            assert end <= begin < behind <= len(variant)
            end = behind
    block = f"[a/op_0_mm]\n  Shape: {text}\n  Output hash: {text}\n  Input hashes: {text}\n  Location: {text}"
    for log in (text, block):
        list(numerics.read_titan_log("log", log.encode(errors="surrogatepass")))
    call = {"type": "op", "op_name": text, "args_str": text, "output_str": text, "stack_trace": text}
    for variant in (content, json.dumps({"logs": [call]}).encode()):
        with suppress(numerics.NotDebugMode):
            for row in numerics.read_log("log", variant):
                row.attributes.encode()


def read_safetensors(content: bytes) -> None:
    # The first bytes are rarely a valid length.
    framed = len(content).to_bytes(8, "little") + content
    for variant in (content, framed, framed + bytes(64)):
        read = partial(safetensors.read_headers, reader(variant), len(variant))
        with suppress(UnreadableTensor):
            assert joined(variant, read()) == variant
        same_alone(read, read)


def read_npz(content: bytes) -> None:
    with suppress(UnreadableTensor):
        assert joined(content, npy.read_archive_headers(reader(content), len(content))) == content


def read_pickle(content: bytes) -> None:
    with suppress(UnreadableTensor):
        pt_tree.contents(Machine(content, pt_tree.FUNCTIONS).run(), len(content))


def read_csv(content: bytes) -> None:
    headers = (
        b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,MD5\n",
        b"Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count\n",
    )
    for variant in (content, *(header + content for header in headers)):
        for row in statistic_csv.parse(variant).rows:
            statistic_csv.statistics(row)
            statistic_csv.checksum(row)


def read_names(content: bytes) -> None:
    name = os.fsdecode(content).replace("/", "")
    for parse in (
        cann.parse_tensor_name,
        cann.parse_bin_name,
        cann.parse_npy_name,
        mindspore.parse_raw_name,
        msprobe.parse_tensor_name,
        cann.parse_call_name,
        pytorch.parse_trt_llm_name,
        pytorch.parse_aoti_name,
        pytorch.parse_te_name,
    ):
        parse(name)
    pytorch.parse_sglang_names([name])
    text = paths.to_text(os.fsdecode(content))
    text.encode()
    with suppress(DumpError):
        path = paths.inside(Path("/dump"), paths.from_text(text))
        assert path.is_relative_to("/dump")
        assert ".." not in path.parts


def read_graph(content: bytes) -> None:
    # As a graph in a model, of which one node has the content.
    node = b"\x0a" + varint(len(content)) + content
    model = b"\x22" + varint(len(node)) + node
    for variant in (content, b"\x22" + varint(len(content)) + content, model):
        for op in ir.parse_pb([variant]).ops.values():
            op.name.encode()


def read_overflow(content: bytes) -> None:
    for parse in (overflow.parse, overflow.parse_json):
        try:
            parse(content).failures()
        except UnreadableTensor:
            continue


TARGETS: dict[str, Callable[[bytes], None]] = {
    "dump_data": read_dump_data,
    "overflow": read_overflow,
    "npy": read_npy,
    "pt": read_pt,
    "pickle": read_pickle,
    "safetensors": read_safetensors,
    "distcp": read_distcp,
    "tensor_proto": read_tensor_proto,
    "logs": read_logs,
    "npz": read_npz,
    "csv": read_csv,
    "names": read_names,
    "graph": read_graph,
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"{__doc__}\nDecoders: {', '.join(TARGETS)}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
