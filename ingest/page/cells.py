"""Which matrix a URL asks for: of the ranks and steps that it chooses, from what the page has read."""

from __future__ import annotations

from ingest.page.arguments import Arguments
from ingest.page.moment import Moment
from ingest.questions.matrix import Matrix, WantedCells, matrix_of_steps, parse_range
from ingest.reader.cubes.rank_statistics import RankValues


def matrix_asked(moment: Moment, asked: Arguments) -> Matrix:
    """Return a number for each rank and step that a URL chooses; what was read before is not read again.

    Raises:
        UsageError: a range is not one, the statistic is unknown, or no tensor matches.
        DamagedStore: no step can be read.
    """
    damaged = [damage.key for damage in moment.damages]
    all_ranks = {*moment.ranks, *(key.rank for key in damaged)}
    all_steps = {*moment.numbers, *(key.step for key in damaged if key.step is not None)}
    ranks = parse_range(asked.text("ranks"), sorted(all_ranks), "ranks")
    steps = parse_range(asked.text("steps"), sorted(all_steps), "steps")
    pattern = asked.text("name", "*")

    def values_of(statistic: str) -> dict[int, RankValues]:
        kept = moment.fields.of(moment.snapshot, moment.generations, pattern, statistic)
        return {step: field.of_ranks for step, field in kept.items()}

    wanted = WantedCells(asked.text("stat", "non_finite"), pattern, ranks, steps)
    return matrix_of_steps(moment.steps, damaged, wanted, values_of)
