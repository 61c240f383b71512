"""Channels and rows of tensors that stand out, are dead, or are saturated: from marginals.

answer.py   the answer, as values
find.py     finding them over steps and ranks
"""

from ingest.questions.outliers.answer import OddPositions, OutliersAnswer
from ingest.questions.outliers.find import outliers

__all__ = ["OddPositions", "OutliersAnswer", "outliers"]
