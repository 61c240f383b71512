"""Where replicas stop agreeing.

agreement         who agrees with whom on each tensor
expectations      which ranks must agree on it
differences       which ranks do not, where each began, and what shows the cause
broken_operators  which operators have equal inputs and unequal outputs
absent            what some ranks have and others do not
find              puts them together
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
