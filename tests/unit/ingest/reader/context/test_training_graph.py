"""The graph that trains, among those of a step."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.training_graph import (
    BuiltGraph,
    choose_training_graph,
    parse_built_graph,
    parse_dumped_models,
)
from tests.samples import sample


def test_the_only_graph_trains() -> None:
    assert choose_training_graph({"a": 1}).name == "a"
    assert choose_training_graph({}).name is None


def test_the_graph_with_an_iterator_trains() -> None:
    built = [BuiltGraph("a", False), BuiltGraph("ge/default.1", True), BuiltGraph("c", True)]
    chosen = choose_training_graph({"a": 9, "ge_default_1": 1}, built, ["a"])
    assert (chosen.name, chosen.rule) == ("ge_default_1", "named like the built graph with an iterator")


def test_the_graph_that_was_asked_for_trains() -> None:
    assert choose_training_graph({"a": 9, "b": 1}, [], ["b", "z"]).name == "b"
    assert choose_training_graph({"a": 9, "b": 1}, [], ["a", "b"]).rule == "the graph with the most tensors"


def test_the_larger_graph_trains_unless_they_are_equal() -> None:
    assert choose_training_graph({"a": 9, "b": 1}).name == "a"
    assert choose_training_graph({"a": 9, "b": 9}).name is None


def test_a_built_graph_has_a_name() -> None:
    text = b'graph {\n  name: "ge_default_1"\n  op {\n    name: "x"\n    type: "IteratorV2"\n  }\n}\n'
    assert parse_built_graph(text) == BuiltGraph("ge_default_1", True)
    assert parse_built_graph(b"graph {\n}") is None


def test_models_are_read_out_of_a_configuration() -> None:
    text = b'{"dump": {"dump_list": [{"model_name": "m", "layer": ["x"]}, {}, 3], "dump_path": "/d"}}'
    assert parse_dumped_models(text) == ["m"]
    for file in sample("cann-acl-config").rglob("*.json"):
        parse_dumped_models(file.read_bytes())


@given(st.binary(max_size=100) | st.text('{}[]":,dumplist_model0', max_size=60).map(str.encode))
def test_any_bytes_are_parsed(data: bytes) -> None:
    parse_dumped_models(data)
    parse_built_graph(data)
