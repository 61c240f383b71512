"""Which name of A is which name of B, as a mapping file says, and what is wrong with such a file."""

from pathlib import Path

import pytest

from ingest.questions.compare.mapping import NameMapping, load_mapping
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from tests.dumps import DumpLibrary
from workers.errors import UsageError


def mapping(path: Path, text: str) -> NameMapping:
    path.write_text(text)
    return load_mapping(path)


def test_a_mapping_file_says_which_is_which(tmp_path: Path) -> None:
    text = """
pairs:
  - {a: "Cell.conv.*.output.?", b: "Module.conv.*.output.?"}
  - {regex: 'Dense\\.(?P<layer>\\w+)\\.(.*)', b: 'Linear.\\g<layer>.\\2'}
"""
    names = mapping(tmp_path / "m.yaml", text)
    assert names.name_in_b("Cell.conv.forward.0.output.0") == "Module.conv.forward.0.output.0"
    assert names.name_in_b("Dense.fc.output.0") == "Linear.fc.output.0"
    assert names.name_in_b("Other") is None
    assert names.unused(["Dense.fc.output.0"]) == [0]


def test_what_stands_for_itself_in_a_glob_is_no_pattern(tmp_path: Path) -> None:
    names = mapping(tmp_path / "m.yaml", r"pairs: [{a: 'a.b(c)\*', b: 'x\1*'}]")
    assert names.name_in_b("a.b(c)\\d") == "x\\1d"
    assert names.name_in_b("aXb(c)\\d") is None


def test_frameworks_are_compared_by_a_mapping(dumps: DumpLibrary, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(
        r"""pairs:
  - {regex: 'Cell\.Dense\.Cell\.(\w+)\.Dense\.(.*)', b: 'Module.Linear.Module.\1.Linear.\2'}
  - {a: "Nothing.*", b: "Nowhere.*"}
"""
    )
    a, b = dumps["msprobe-26.2.0-mindspore-cpu"], dumps["msprobe-26.2.0-pytorch-cpu"] / "tensor-mix"
    found = compare(a, b, mapping=load_mapping(path))
    matched = [tensor for tensor in found.tensors if tensor.matched]
    assert {tensor.matched for tensor in matched} == {"mapping"}
    assert ("Cell.Dense.Cell.fc.Dense.forward.0.parameters.weight.-1") in {
        tensor.name_a for tensor in matched
    }
    assert found.counts[Verdict.ONLY_A] + len(matched) == 60
    assert "pair 2 of the mapping file fits no tensor of A" in found.notes
    # Without one, what operators do and the order tell which is which; weights differ, and so does all else.
    guessed = compare(a, b)
    assert guessed.first is not None
    assert guessed.first.tensor.name_a.startswith("Primitive.Conv2D.")
    assert guessed.first.tensor.name_b.startswith("Functional.conv2d.")


@pytest.mark.parametrize(
    ("glob", "template", "name", "other"),
    [
        ("a*b*c", "<*|*>", "aXbYbZc", "<X|YbZ>"),
        ("*.output.?", "*-?", "x.output.y.output.3", "x.output.y-3"),
        ("*.*", "*/*", "a.b.c", "a/b.c"),
        ("a?c*", "?*", "abcdef", "bdef"),
        ("**x", "*-*", "ax", "-a"),
        ("[a]*", "[b]*", "[a]c", "[b]c"),
        ("a*b*c", "<*|*>", "aXbY", None),
    ],
)
def test_globs_match_what_comes_first(
    tmp_path: Path, glob: str, template: str, name: str, other: str | None
) -> None:
    rules = mapping(tmp_path / "map.yml", f"pairs: [{{a: {glob!r}, b: {template!r}}}]")
    assert rules.name_in_b(name) == other


def test_no_glob_takes_long(tmp_path: Path) -> None:
    """With backtracking, this one would try more ways than there are atoms."""
    glob = "a*" * 40 + "b"
    rules = mapping(tmp_path / "map.yml", f"pairs: [{{a: {glob!r}, b: x}}]")
    assert rules.name_in_b("a" * 2000) is None


def test_a_regular_expression_that_takes_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = mapping(tmp_path / "map.yml", "pairs: [{regex: '(a|aa)+[^a]', b: x}]")
    monkeypatch.setattr(rules.rules[0]._compiled[0], "_left_s", 0.1)
    with pytest.raises(UsageError, match=r"regex '\(a\|aa\)\+\[\^a\]' takes too long for 'aaa"):
        rules.name_in_b("a" * 80)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pairs: [{a: x}]", r":1: pairs\.0\.b: Field required"),
        ("pairs:\n  - {b: x}", r":2: pairs\.0: .*either"),
        ("pairs:\n  - {a: x, b: y}\n  - {a: x, b: y, c: z}", r":3: pairs\.1\.c: is not known"),
        ("pairs: [{a: 'x*', b: '*y*'}]", "1 wildcard, "),
        ("pairs: [{regex: '(', b: y}]", "regex"),
        ("pairs: [{regex: 'x', b: '\\1'}]", "regex"),
        ("pears: []", ":1: .*"),
        ("- x", ":1: must hold names and values"),
        ("{", r":1: "),
        ("pairs: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("pairs: &a [*a]", "pairs|refers to itself"),
    ],
)
def test_a_wrong_mapping_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mapping(tmp_path / "m.yaml", text)
