"""A bit that flips between two operators is seen on one rank, and in healthy runs nothing is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ingest.api import broken_links, open_store
from ingest.questions.divergence import broken_links as broken_links_module
from tests.dumps import DumpLibrary
from tests.flips import flip
from tests.pipeline import ingest_directly

SOFTMAX = "Softmax.*softmax-Softmax_Softmax-op0.*.output.0.*"


@pytest.mark.parametrize(
    "name",
    [
        "lenet-4rank",
        "nan-log-2rank",
        "tinybert-2rank",
    ],
)
def test_links_of_a_healthy_run_hold(name: str, dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps[name] / "dump", store)
    answer = broken_links(open_store(store))
    assert answer.links == ()
    assert answer.compared > 200


def test_a_flip_in_one_activation_is_seen_on_its_rank(dump_copy: Callable[[str], Path], store: Path) -> None:
    dump = dump_copy("tinybert-2rank") / "dump"
    flip(dump, "Softmax.*Block_softmax-Softmax_Softmax-op0.*.output.0.*", rank=1, step=1, element=5, bit=22)
    ingest_directly(dump, store)
    answer = broken_links(open_store(store), rank=1)
    assert {(link.rank, link.step) for link in answer.links} == {(1, 1)}
    assert {link.output.partition(".")[0] for link in answer.links} == {"Softmax"}
    for link in answer.links:
        assert link.other_readers == 0
        assert link.bits is not None
        assert (link.bits.elements, link.bits.bits, link.bits.first[0].bits) == (1, 1, (22,))


def test_a_flip_in_an_input_is_named_with_the_other_readers(
    dump_copy: Callable[[str], Path], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = dump_copy("lenet-1rank") / "dump"
    ingest_directly(dump, store)
    shared = next(
        tensor
        for tensor in open_store(store).tensors(rank=0, step=1, io="output")
        if tensor.op_type == "ReLU" and len(tensor.consumers) > 1
    )
    read = shared.consumers[0].tensor
    flip(dump, f"{read.op_type}.{read.op_name}.*.input.{read.slot}.*", rank=0, step=1, element=0, bit=3)
    other = store.with_name("flipped.zarr")
    ingest_directly(dump, other)
    answer = broken_links(open_store(other))
    (link,) = answer.links
    assert "<strong>1 broken link: " in answer._repr_html_()
    assert (link.output, link.input, link.step) == (shared.name, read.name, 1)
    assert link.other_readers == len(shared.consumers) - 1
    # No dump with a graph has such names yet.
    named, link_of = f"{read.name}[0]", broken_links_module._link
    monkeypatch.setattr(broken_links_module, "_link", lambda *of: replace(link_of(*of), input=named))
    assert len(broken_links(open_store(other), name=named).links) == 1
    assert broken_links(open_store(other), name=f"{read.name}0").links == ()


def test_a_dump_without_a_graph_says_so(dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps["msprobe-26.2.0-mindspore-cpu"], store)
    assert broken_links(open_store(store)).compared == 0
