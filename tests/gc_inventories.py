"""Inventories and policies of gc: made up by hypothesis, and made by hand."""

from hypothesis import strategies as st

from ingest.store_gc.inventory import CommitFacts, Extent, Generation, Inventory, StepInventory
from ingest.store_gc.policy import GcPolicy
from workers.model import StepKey

NOW = 1_800_000_000.0
DAY_S = 86400.0

_NAMES = st.sampled_from([f"{n:032x}" for n in range(4)])
_TIMES = st.floats(0, 10).map(lambda days: NOW - days * DAY_S)
_EXTENTS = st.builds(Extent, st.integers(1, 9), st.integers(1, 1000), _TIMES)
_GENERATIONS = st.builds(Generation, _EXTENTS, _EXTENTS)
_KEYS = st.builds(StepKey, st.integers(0, 3), st.none() | st.integers(0, 12))


@st.composite
def _step_inventories(draw: st.DrawFn, key: StepKey) -> StepInventory:
    generations = draw(st.dictionaries(_NAMES, _GENERATIONS, max_size=3))
    facts: CommitFacts | None = None
    is_committed = draw(st.booleans())
    if generations and is_committed:
        name = draw(st.sampled_from(sorted(generations)))
        facts = CommitFacts(name, draw(_TIMES), draw(st.booleans()), draw(st.booleans()))
    record = Extent(1, 10, draw(_TIMES)) if facts else Extent()
    damage = "" if facts or not draw(st.booleans()) else "no commit record"
    return StepInventory(key, generations, record, facts, damage)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """Return any store: steps and run files of four ranks, committed, damaged or neither."""
    keys = draw(st.sets(_KEYS, min_size=1, max_size=20))
    steps = tuple(draw(_step_inventories(key)) for key in sorted(keys, key=lambda key: key.order))
    temporaries = {f"rank_0/.x.{n:032x}.tmp": draw(_EXTENTS) for n in range(draw(st.integers(0, 2)))}
    total = sum((held.whole for step in steps for held in step.generations.values()), Extent(3, 1000))
    total += sum((step.record for step in steps), sum(temporaries.values(), Extent()))
    numbers = st.frozensets(st.integers(0, 12))
    return Inventory("/run.zarr", total, steps, temporaries, draw(numbers), draw(numbers))


POLICIES = st.builds(
    GcPolicy,
    st.none() | st.floats(0, 12 * DAY_S),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(0, 30_000),
    st.none() | st.integers(0, 3),
    st.booleans(),
    st.floats(0, 5 * DAY_S),
)


def one_rank(*numbers: int, anomalous: tuple[int, ...] = ()) -> Inventory:
    """Return a store of one rank whose steps were committed ten days ago."""
    held = Generation(Extent(5, 100, 0.0), Extent(5, 10, 0.0))
    steps = tuple(
        StepInventory(
            StepKey(0, number),
            {f"{number:032x}": held},
            Extent(1, 1, 0.0),
            CommitFacts(f"{number:032x}", NOW - 10 * DAY_S, number in anomalous, True),
        )
        for number in numbers
    )
    return Inventory("/run.zarr", Extent(11 * len(steps), 111 * len(steps)), steps, {})
