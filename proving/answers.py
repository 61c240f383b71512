"""Ask about a run, and turn answers into plain statements: the only module that knows how answers look."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ingest
from ingest.settings import load
from proving.case import Cause, Statement
from workers.errors import UsageError

_STORE = "run.zarr"
_SERIOUS = ("warning", "critical")
#: What answers call a cause that the vocabulary calls otherwise.
_WORDS = {
    "missing reduction": Cause.MISSING_REDUCTION,
    "wrong shard": Cause.WRONG_SHARD,
    "bias on every rank": Cause.BIAS_ON_EVERY_RANK,
    "optimizer state out of step": Cause.STATE_OUT_OF_STEP,
    "nan": Cause.NOT_FINITE,
    "inf": Cause.NOT_FINITE,
    "overflow": Cause.NOT_FINITE,
    "ranks differ": "",  # a place, without a cause
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the answers say."""

    statements: Mapping[str, tuple[Statement, ...]]
    """By question; in the order of the answer."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """By question that ended with an error: the error."""


def take_in(place: Path, layout: str = "") -> None:
    """Ingest the dump of a run, and delete it."""
    settings = load(quiet_s=0.1, workers=1, layout=layout).settings
    report = ingest.ingest_dump(place / "dump", place / _STORE, settings=settings)
    if not report.commits:
        raise RuntimeError(f"nothing of {place} was ingested")
    shutil.rmtree(place / "dump")


def ask(place: Path, reference: Path | None, *, alone: bool) -> Asked:
    """Ask everything about the run in a directory, alone and compared with its reference."""
    store = ingest.open_store(place / _STORE)
    questions: dict[str, Callable[[], Iterator[Statement]]] = {}
    if alone:
        questions = {name: partial(ask, store) for name, ask in _ALONE.items()}
    if reference is not None:
        questions["compare"] = lambda: _compare(store, ingest.open_store(reference / _STORE))
    statements, problems = {}, {}
    for name, question in questions.items():
        try:
            statements[name] = tuple(question())
        except UsageError:  # the question does not apply: replicas of one rank
            statements[name] = ()
        except Exception as exc:  # noqa: BLE001  (an answer that is none is a result, too)
            problems[name] = f"{type(exc).__name__}: {exc}"
    return Asked(statements, problems)


def _anomalies(store: Any) -> Iterator[Statement]:
    for incident in ingest.incidents(store).incidents:
        known = incident.to_dict()
        if known["severity"] not in _SERIOUS:
            continue
        operator = ".".join(filter(None, (known["op_type"], known["op_name"])))
        yield Statement(
            "anomalies",
            f"{known['severity']}: {known['summary']}",
            _places(known["tensor"], operator),
            known["first_step"],
            (known["rank"],) if known["rank"] is not None else tuple(known["ranks"]),
            _cause(known, known["kind"] if known["kind"] in _WORDS else ""),
            _admits(known),
        )


def _origin(store: Any) -> Iterator[Statement]:
    known = ingest.origin(store).to_dict()
    if known["op_name"] is None or known["how"] == "recorded":
        return
    operator = f"{known['op_type']}.{known['op_name']}"
    cause = _cause(known, "nan")
    text = f"{known['what']} {known['how']} in {operator}"
    yield Statement("origin", text, _places(operator), known["step"], (known["rank"],), cause)


def _divergence(store: Any) -> Iterator[Statement]:
    answer = ingest.divergence(store)
    for finding in answer.misplaced:
        yield _misplaced("divergence", finding.to_dict())
    for broken in answer.broken:
        ranks, operator = tuple(broken.ranks), f"{broken.op_type}.{broken.op_name}"
        text = f"{operator} broke: its inputs are equal"
        yield Statement(
            "divergence", text, _places(operator), broken.step, ranks, "", not broken.has_majority
        )
    for odd in answer.odd:
        known = odd.to_dict()
        name, ranks = known["first"]["name"], tuple(known["ranks"])
        text = f"off since step {known['first_step']}: {name}"
        yield Statement(
            "divergence",
            text,
            _places(name),
            known["first_step"],
            ranks,
            _cause(known),
            not known["has_majority"],
        )


def _layout(store: Any) -> Iterator[Statement]:
    for finding in ingest.layout(store).findings:
        yield _misplaced("layout", finding.to_dict())


def _misplaced(question: str, known: Mapping[str, Any]) -> Statement:
    text, ranks = f"{known['kind']}: {known['text']}", tuple(known["ranks"])
    cause = _cause(known, known["kind"])
    return Statement(question, text, _places(known["name"]), known["step"], ranks, cause, _admits(known))


def _compare(store: Any, reference: Any) -> Iterator[Statement]:
    known = ingest.compare(store, reference).to_dict()
    first = known["first"]
    if known["verdict"] != "different":
        return
    if first is None:
        yield Statement("compare", f"different: {'; '.join(known['notes'])}")
        return
    text = f"{first['verdict']}: {first['reason']}; {first['says']}"
    name = first["name_a"] or first["name_b"]
    step = first["step_a"] if first["step_a"] is not None else first["step_b"]
    rank = first["rank_a"] if first["rank_a"] is not None else first["rank_b"]
    # A tensor that was put together is that of all ranks that hold a part.
    ranks = tuple(first["ranks"] or first.get("ranks_a") or (() if rank is None else (rank,)))
    yield Statement("compare", text, _places(name), step, ranks, _cause(first), _admits(first))


def _audit(store: Any) -> Iterator[Statement]:
    for failure in ingest.audit(store).failures:
        known = failure.to_dict()
        text = f"{known['identity']}: {known['what']}"
        ranks, places = (known["rank"],), _places(known["name"])
        yield Statement("audit", text, places, known["steps"][0], ranks, _cause(known), _admits(known))


_ALONE: dict[str, Callable[[Any], Iterator[Statement]]] = {
    "anomalies": _anomalies,
    "origin": _origin,
    "divergence": _divergence,
    "layout": _layout,
    "audit": _audit,
}


def _cause(known: Mapping[str, Any], otherwise: str = "") -> str:
    """Return the cause that an answer states, in the words of the vocabulary where that has one."""
    stated = known.get("cause") or otherwise
    return _WORDS.get(stated, stated)


def _admits(known: Mapping[str, Any]) -> bool:
    return known.get("level") == "open"


def _places(*names: str) -> tuple[str, ...]:
    """Return the names that a place goes by: `Parameter.fc.weight` is `fc.weight`, too."""
    told: dict[str, None] = {}
    for name in filter(None, names):
        whole = re.sub(r"\.(input|output)\.(\d+|[a-z_.]+\.\d+)(#\d+)?$", "", name)
        path = re.sub(r"^((Module|Functional|Torch|Tensor)\.[^.]*|Parameter|Buffer|Gradient)\.", "", whole)
        told |= dict.fromkeys((name, whole, path))
    return tuple(told)
