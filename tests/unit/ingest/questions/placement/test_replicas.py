"""Which ranks hold the same parameters."""

from ingest.questions.placement.replicas import ReplicaCounts


def counted(*parameters: tuple[str, int]) -> ReplicaCounts:
    """Count parameters, each given by a letter for what each rank holds, and its size."""
    counts = ReplicaCounts(range(len(parameters[0][0])))
    for letters, size in parameters:
        counts.add({rank: letter for rank, letter in enumerate(letters) if letter != "-"}, size)
    return counts


def test_norms_alone_make_no_replicas() -> None:
    """Two of three parameters are the same, and hardly any elements."""
    assert counted(("aaaa", 8), ("aaaa", 8), ("abab", 1000)).groups() == [(0, 2), (1, 3)]
    assert counted(("aa", 8), ("aa", 8), ("ab", 1000)).groups() == []


def test_a_replica_that_drifts_is_one() -> None:
    assert counted(("aaab", 10), ("aaaa", 100), ("aaaa", 100)).groups() == [(0, 1, 2, 3)]


def test_only_the_groups_of_a_mesh_are_taken() -> None:
    assert counted(("abab", 9)).grid() == [[0, 2], [1, 3]]
    assert counted(("aaaa", 9)).grid() == []
    assert counted(("abac", 9)).grid() == []
    assert counted(("aab-", 9)).grid() == []
