"""What became of operators that only one of two programs has, in words and as data."""

from ingest.questions.compare.programs import ProgramsBuilder


def test_nothing_is_said_where_names_told_all() -> None:
    builder = ProgramsBuilder()
    assert builder.finish() is None
    builder.add((0, 0, 0), [])
    assert builder.finish() is None
