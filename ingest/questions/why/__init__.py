"""Why an operator produced NaN or Inf: which elements of its inputs did it, by the operator's definition."""

from ingest.questions.why.answer import WhyAnswer, WhyElement, WhyReason, WhyRow
from ingest.questions.why.explain import explain

__all__ = ["WhyAnswer", "WhyElement", "WhyReason", "WhyRow", "explain"]
