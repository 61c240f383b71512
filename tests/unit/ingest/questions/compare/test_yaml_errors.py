"""What is wrong with a file that a user wrote is named with its line."""

from pathlib import Path

import pytest

from ingest.questions.compare.mapping import NameMapping, load_mapping
from workers.errors import UsageError


def mapping(path: Path, text: str) -> NameMapping:
    path.write_text(text)
    return load_mapping(path)


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
