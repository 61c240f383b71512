"""Questions over a store, each with an answer that its command, a notebook and the page show.

question.py              what makes a question: described parameters, an answer that says how it is shown
origin/, why.py          which operator produced NaN or Inf first, and what in its inputs did it
divergence/              where replicas stop agreeing
compare/                 two stores, runs, ranks, steps or dumps, tensor by tensor
rollout/                 whether the weights of a trainer arrived in the engine that samples for it
placement/               how the ranks of a run hold each tensor
next_dump.py, dump_cost.py, missing.py
                         what to dump next and its cost; what was asked for and is not in the store
outliers.py, precision.py, quantiles.py, localize.py
                         answers from sketches, also when the tensors are gone
audit.py                 tensors that do not follow from what they were computed from
trampled.py              memory that changed although nobody wrote it
growth.py                how far two runs grow apart, from their indexes alone
trend.py, heatmap.py, matrix.py
                         a statistic over steps and ranks
plot.py                  pictures of these, with matplotlib
find.py                  tensors by name, operator and statistics
choosing.py, name_pattern.py
                         shared: what users name, and the tensors that a question is about
"""

from __future__ import annotations

from typing import NamedTuple


class Listed(NamedTuple):
    """A question as `dump-ingest --help` and the page list it; `question.question_named` imports it."""

    home: str
    """The module whose `QUESTION` it is."""
    summary: str
    """The first line of its docstring."""


#: The questions of which everything is made from their own modules, by the name of their command; in the
#: order of `dump-ingest --help`.
QUESTIONS = {
    "ls": Listed(
        "ingest.cli.ls",
        "List the committed steps, or the tensors, files, problems or overflow records in them.",
    ),
    "find": Listed("ingest.questions.find", "Find tensors, in order of step, rank and execution."),
    "anomalies": Listed(
        "ingest.findings.incidents",
        "List what went wrong, once for each cause: the worst first, then the earliest.",
    ),
    "origin": Listed(
        "ingest.questions.origin.search",
        "Name the first operator that produced NaN or Inf from clean inputs, and how it spread.",
    ),
    "divergence": Listed(
        "ingest.questions.divergence.find",
        "Find tensors on which replicas disagree: the first step and tensor, and the odd rank.",
    ),
    "audit": Listed(
        "ingest.questions.audit",
        "Check every tensor against what it follows from: what does not follow was computed wrongly.",
    ),
    "trampled": Listed(
        "ingest.questions.trampled",
        "Find tensors that changed within a step although nobody wrote them: trampled memory.",
    ),
    "localize": Listed(
        "ingest.questions.localize",
        "Say where tensors of two steps differ, without reading them: also after gc.",
    ),
    "layout": Listed(
        "ingest.questions.placement.within",
        "Show how the ranks of a run hold its tensors, and name ranks that hold what they should not.",
    ),
    "compare-weights": Listed(
        "ingest.questions.rollout.weights",
        "Say whether the weights of a trainer arrived in the engine that samples: by value, not by name.",
    ),
    "trend": Listed(
        "ingest.questions.trend",
        "Show how a statistic of tensors develops over the steps, by tensor and rank.",
    ),
    "heatmap": Listed(
        "ingest.questions.heatmap",
        "Show a statistic of one tensor, or of several together, over ranks and steps.",
    ),
    "precision": Listed(
        "ingest.questions.precision",
        "Name the tensors that would overflow or underflow in float16, float8, ...: the worst first.",
    ),
    "quantiles": Listed(
        "ingest.questions.quantiles",
        "Show percentiles of the finite elements of tensors, also after their elements are gone.",
    ),
    "outliers": Listed(
        "ingest.questions.outliers",
        "Name the channels and rows of tensors that stand out, are dead, or are saturated.",
    ),
}
