"""Encoding the tensors of a committed step again, so that they take less room: for steps rarely read.

The elements stay what they are, and so do rows, places, chunks and shards. What comes out is another
generation of the step, which takes the place of the present one with one write, as any generation does; `gc`
removes the present one after its grace period. So readers find the step at any moment, and a crash leaves
remains that no commit points to. See docs/design/005-codec-and-encoder.md for the codecs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import xxhash
from msgspec import structs
from numcodecs import blosc

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import commit, metadata
from workers.store.backends.failures import supervised
from workers.store.commit import Commit, Tombstone, read_tombstones
from workers.store.model import ArraySpec
from workers.store.objects import Gathered, ObjectStore
from workers.store.packed.chunks import BY_BLOSC
from workers.store.packed.pool import without_pool
from workers.store.packed.shards import ShardPacker, ShardReader
from workers.store.record import LEAF, CommitRecord, encode_leaf

#: The ways to shuffle that are compared for each array.
_SHUFFLES = ("shuffle", "bitshuffle")
#: What an array must lose of its stored bytes to be encoded again: reading it takes twice as long then.
_LEAST_SAVING = 0.03
#: Chunks of an array by which the ways are compared, spread over all of it.
_SAMPLED = 32


@dataclass(frozen=True, slots=True)
class Recompressed:
    """What became of a step."""

    key: StepKey
    before_nbytes: int = 0
    """Stored bytes of its arrays of tensors before."""
    after_nbytes: int = 0
    left: str = ""
    """Why the step was left as it is; "" if it was not."""
    is_damaged: bool = False
    """Whether it was left because an object is missing or damaged."""


def is_dense(committed: Commit) -> bool:
    """Return whether the tensors of a step were encoded again."""
    return any(metadata.packed_spec(path, committed.nodes[path]).dense for path in _shards(committed))


def recompress(objects: ObjectStore, key: StepKey) -> Recompressed:
    """Encode the tensors of a step again, unless that saves too little. What is in the pool stays as it is.

    Memory: the largest object of the step, twice.

    Raises:
        StoreError: the store refused. The step is as it was.
    """
    return supervised(_recompress, objects, key)


def _recompress(objects: ObjectStore, key: StepKey) -> Recompressed:
    committed = commit.read(objects, key)
    if committed is None:
        return Recompressed(key, left="it was removed")
    if is_dense(committed):
        return Recompressed(key, left="it is dense")
    if committed.without_tensors is not None:
        return Recompressed(key, left=str(committed.without_tensors))
    try:
        specs = _chosen(objects, committed)
        if not specs:
            return Recompressed(key, left=f"it would save less than {_LEAST_SAVING:.0%}")
        return _replace(objects, committed, specs)
    except DamagedStore as exc:
        return Recompressed(key, left=exc.message, is_damaged=True)


def _chosen(objects: ObjectStore, committed: Commit) -> dict[str, ArraySpec]:
    chosen = {}
    for path, shards in _shards(committed).items():
        spec = metadata.packed_spec(path, committed.nodes[path])
        reader = ShardReader(objects, f"{committed.prefix}/{path}", spec)
        written = [number for shard in shards for number in reader.written(shard)]
        sample = [_decoded(reader, number) for number in written[:: math.ceil(len(written) / _SAMPLED) or 1]]
        sizes = {shuffle: _size(_dense(spec, shuffle), sample) for shuffle in _SHUFFLES}
        best = min(_SHUFFLES, key=sizes.__getitem__)
        if sizes[best] <= (1 - _LEAST_SAVING) * _size(spec, sample):
            chosen[path] = _dense(spec, best)
    return chosen


def _dense(spec: ArraySpec, shuffle: str) -> ArraySpec:
    """Return how an array is encoded again; its sparse chunks with all looks for repetitions."""
    return replace(spec, dense=shuffle, sparse=BY_BLOSC if spec.sparse else "")


def _shards(committed: Commit) -> dict[str, list[int]]:
    shards: dict[str, list[int]] = {}
    for name in sorted(committed.record.stored):
        path, _, number = name.rpartition("/c/")
        if metadata.is_of_tensors(name) and number.isdecimal():
            shards.setdefault(path, []).append(int(number))
    return shards


def _decoded(reader: ShardReader, number: int) -> bytes:
    (chunk,) = reader.chunks(range(number, number + 1))
    if isinstance(chunk, str):
        raise DamagedStore(chunk)
    return bytes(chunk)


def _size(spec: ArraySpec, chunks: list[bytes]) -> int:
    with ShardPacker(spec, 0, lambda _: Gathered(lambda _: None)) as packer:
        for chunk in chunks:
            packer.append(memoryview(chunk))
    return sum(packer.stored.values())


def _replace(objects: ObjectStore, committed: Commit, specs: Mapping[str, ArraySpec]) -> Recompressed:
    how = " ".join(f"{path} {spec.dense}" for path, spec in sorted(specs.items()))
    digest = xxhash.xxh3_64_hexdigest(f"{committed.fingerprint} {blosc.VERSION_STRING} {how}".encode())
    name = f"{without_pool(committed.fingerprint)}-{digest}"
    prefix = f"{committed.key.path}/{name}"
    nodes: dict[str, metadata.Document] = {
        path: {**node, **_encoding(specs[path], node["shape"][0])} if path in specs else node
        for path, node in committed.nodes.items()
    }
    stored = dict(committed.record.stored)
    for path, spec in specs.items():
        stored |= dict(_encode_again(objects, committed, spec, f"{prefix}/{path}"))
    for listed in objects.listed(committed.prefix):
        if not any(listed.startswith(f"{path}/") for path in specs) and "/." not in f"/{listed}":
            _copy(objects, f"{committed.prefix}/{listed}", f"{prefix}/{listed}")
    for path in specs:
        objects.put(f"{prefix}/{path}/{LEAF}", metadata.encode(nodes[path]))
    before, after = (
        sum(sizes[shard] for shard in sizes if metadata.is_of_tensors(shard))
        for sizes in (committed.record.stored, stored)
    )
    # A power cut must not spoil the step: what it has now goes after the grace period.
    objects.flush(prefix)
    left = _commit(objects, committed, _record(committed, name, stored, after - before), nodes)
    return Recompressed(committed.key, left=left) if left else Recompressed(committed.key, before, after)


def _encoding(spec: ArraySpec, length: int) -> metadata.Document:
    made = metadata.packed_array(spec, length)
    return {"codecs": made["codecs"], "attributes": made["attributes"]}


def _encode_again(
    objects: ObjectStore, committed: Commit, spec: ArraySpec, target: str
) -> Iterator[tuple[str, int]]:
    """Write the shards of an array; yield the path and size of each. What is written is read from memory."""
    reader = ShardReader(objects, f"{committed.prefix}/{spec.path}", replace(spec, dense=""))
    for shard in _shards(committed)[spec.path]:
        with ShardPacker(spec, shard, lambda number: objects.create(f"{target}/c/{number}")) as packer:
            written = reader.written(shard)
            for run in reader.runs(written.start, written.stop):
                for chunk in reader.chunks(run):
                    if isinstance(chunk, str):
                        raise DamagedStore(chunk)
                    packer.append(memoryview(chunk))
        for number, nbytes in packer.stored.items():
            yield f"{spec.path}/c/{number}", nbytes


def _copy(objects: ObjectStore, source: str, target: str) -> None:
    data = objects.get(source)
    if data is None:
        raise DamagedStore(f"{source} is missing")
    objects.put(target, data)


def _record(committed: Commit, name: str, stored: Mapping[str, int], gained: int) -> CommitRecord:
    record = committed.record
    stored_bytes = max(record.summary.stored_bytes + gained, 0)
    return structs.replace(
        record,
        fingerprint=name,
        previous=(*record.previous, committed.fingerprint),
        stored=dict(stored),
        summary=replace(record.summary, stored_bytes=stored_bytes),
    )


def _commit(
    objects: ObjectStore, committed: Commit, record: CommitRecord, nodes: Mapping[str, metadata.Document]
) -> str:
    """Commit the new generation; return why it was not, or was withdrawn, "" if it is in place."""
    key, name = committed.key, record.fingerprint
    if not commit.is_unchanged(objects, committed):
        return "it was committed again, or removed, meanwhile"
    commit.replace_leaf(objects, key, encode_leaf(record, nodes), name, committed.record.generations)
    # Between the last look and the write is a window of milliseconds, in which `gc` may have hidden the step.
    # It writes a tombstone before that.
    committed_ms = round(committed.record.committed_at_s * 1000)
    tombstone = Tombstone(key.rank, key.step or 0, committed.fingerprint, committed_ms)
    if key.step is not None and tombstone in read_tombstones(objects, key.rank).get(key.step, []):
        present = commit.read(objects, key)
        if present is not None and present.fingerprint == name:
            commit.withdraw(objects, key)
        return "it was removed meanwhile"
    return ""
