"""Which arrays the cubes are, and how they are cut."""

from workers.store.consolidated.cubes import CubeGrid, CubeLayouts


def test_every_array_is_documented_with_its_shape() -> None:
    documents = CubeLayouts(CubeGrid(2, 64, 16, 8)).documents(5, 3, 70)
    assert documents["by_tensor"]["node_type"] == "group"
    shapes = {name: tuple(document["shape"]) for name, document in documents.items() if "shape" in document}
    assert shapes["min"] == shapes["nan_count"] == shapes["row"] == shapes["by_tensor/row"] == (5, 3, 70)
    assert shapes["digest"] == (5, 3, 70, 16)
    assert shapes["fingerprint"] == shapes["tensors"] == (5, 3)
    assert (shapes["step"], shapes["rank"], shapes["tensor"], shapes["slot"]) == ((5,), (3,), (70,), (70,))
    assert documents["nan_count"]["chunk_grid"]["configuration"]["chunk_shape"] == [8, 2, 64]
    assert documents["max"]["chunk_grid"]["configuration"]["chunk_shape"] == [1, 2, 64]
    assert documents["by_tensor/max"]["chunk_grid"]["configuration"]["chunk_shape"] == [8, 2, 64]
    assert "by_tensor/digest" not in documents
