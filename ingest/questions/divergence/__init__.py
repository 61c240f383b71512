"""Where replicas stop agreeing.

kinds, patterns, observation   who agrees with whom on each tensor, and why replicas should
partitions, expectations       which ranks must agree on it
disagreements, onsets          which ranks do not, and where each began
absent                         what some ranks have and others do not
find                           puts them together
"""

from ingest.questions.divergence.find import divergence
from ingest.questions.divergence.groups import parse_groups
from ingest.questions.divergence.result import Difference, Divergence, Group, Missing, Odd

__all__ = ["Difference", "Divergence", "Group", "Missing", "Odd", "divergence", "parse_groups"]
