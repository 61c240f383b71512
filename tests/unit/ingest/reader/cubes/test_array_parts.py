"""Parts of arrays name their objects, and are put together from them; small ones are requested at once."""

import numpy as np

from ingest.reader.cubes import array_parts
from ingest.reader.cubes.array_parts import ArrayPart, batches
from workers.store.consolidated.cubes import GROUP
from workers.store.consolidated.nd_arrays import ArrayLayout

LAYOUT = ArrayLayout("table", "int64", ("step", "rank"), (2, 3), -1)


def test_an_array_is_put_together_from_its_objects() -> None:
    whole = np.arange(15).reshape(3, 5)
    part = ArrayPart.of(LAYOUT, whole.shape)
    padded = np.full((4, 6), -1)
    padded[:3, :5] = whole
    objects = {
        key: LAYOUT.encode(padded[2 * row : 2 * row + 2, 3 * column : 3 * column + 3])
        for (row, column), key in part.keys.items()
    }
    assert len(objects) == 4
    assert part.decode(objects).tolist() == whole.tolist()


def test_a_part_has_the_chunks_at_one_position() -> None:
    part = ArrayPart.of(LAYOUT, (2, 3), first=7)
    assert part.keys == {(0, 0): f"{GROUP}/{LAYOUT.key((7, 0))}"}
    chunk = np.arange(6).reshape(2, 3)
    assert part.decode({part.keys[0, 0]: LAYOUT.encode(chunk)}).tolist() == chunk.tolist()


def test_parts_of_few_chunks_come_together() -> None:
    few, many = ArrayPart.of(LAYOUT, (2, 3)), ArrayPart.of(LAYOUT, (2, 3 * array_parts._CHUNKS_AT_ONCE))
    together = [list(batch) for batch in batches({"a": few, "b": few, "large": many, "c": few})]
    assert together == [["a", "b"], ["large"], ["c"]]
