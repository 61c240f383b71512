"""What a search returns is a list and a table."""

from ingest.api import DumpStore, Tensors


def test_listing_is_a_list_that_prints_few_of_its_items(filled: DumpStore) -> None:
    tensors = filled.tensors()
    assert isinstance(tensors, list)
    assert isinstance(tensors[:3], Tensors)
    assert len(repr(tensors).splitlines()) == 21
    assert repr(tensors).endswith("... 20 more]")
    assert repr(tensors[:0]) == "[]"


def test_tensors_become_a_table(filled: DumpStore) -> None:
    frame = filled.tensors("Log.*").to_pandas()
    assert list(frame.columns) == list(filled.tensors()[0].to_dict())
    assert (len(frame), int(frame["nan_count"].sum())) == (20, 1)
    assert (str(frame["nan_count"].dtype), str(frame["min"].dtype)) == ("Int64", "float64")


def test_empty_listing_has_the_columns(filled: DumpStore) -> None:
    frame = filled.tensors("absent").to_pandas()
    assert (len(frame), list(frame.columns)) == (0, list(filled.tensors()[0].to_dict()))


def test_steps_become_a_table(filled: DumpStore) -> None:
    frame = filled.select(rank=1).to_pandas()
    assert list(frame.columns) == list(filled.select()[0].to_dict())
    assert frame[["rank", "step", "status", "nan_count"]].to_numpy().tolist() == [
        [1, 8, "complete", 0],
        [1, 9, "complete", 1],
    ]
