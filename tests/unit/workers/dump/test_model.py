"""What is known of a tensor by its name, and what a dump reports of it."""

import math
import pickle

from workers.dump.model import ReportedStatistics, TensorName


def test_name_without_facts_is_unknown_in_every_field() -> None:
    """The index stores -1 and "" for these, and 0 for the only dump of its slot."""
    name = TensorName()
    assert {value for value in name if isinstance(value, str)} == {""}
    assert (name.slot, name.task, name.stream, name.timestamp, name.sequence) == (-1,) * 5
    assert name.occurrence == 0


def test_reported_statistics_survive_the_way_to_a_worker() -> None:
    name = TensorName(op_type="Add", op_name="Add_1", io="output", slot=0)
    report = ReportedStatistics("d/statistic.csv", name, "float32", (2, 3), checksum="md5:00")
    loaded = pickle.loads(pickle.dumps(report))  # noqa: S301 (our own)
    assert (loaded.source, loaded.name, loaded.shape, loaded.checksum, loaded.digits) == (
        "d/statistic.csv",
        name,
        (2, 3),
        "md5:00",
        6,
    )
    assert all(math.isnan(value) for value in loaded.statistics.as_row())
