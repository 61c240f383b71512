"""Where replicas stop agreeing.

patterns, observation          who agrees with whom on each tensor, and why replicas should
partitions, expectations       which ranks must agree on it
disagreements, onsets          which ranks do not, and where each began
broken_operators, broken_bits  which operators have equal inputs and unequal outputs
layout_groups, layout_screen   what the layout of the run tells: groups, and steps with a mistake in it
absent                         what some ranks have and others do not
find                           puts them together
"""

from ingest.questions.divergence.find import divergence
from ingest.questions.divergence.result import (
    NOTHING_COMPARED,
    BrokenOperator,
    Difference,
    Divergence,
    Group,
    Missing,
    Odd,
)

__all__ = [
    "NOTHING_COMPARED",
    "BrokenOperator",
    "Difference",
    "Divergence",
    "Group",
    "Missing",
    "Odd",
    "divergence",
]
