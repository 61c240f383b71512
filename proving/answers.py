"""Ask about a run, and turn answers into plain statements: the only module that knows how answers look."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
    questions: dict[str, Callable[[], Any]] = {}
    if alone:
        questions = {
            "anomalies": lambda: ingest.incidents(store),
            "origin": lambda: ingest.origin(store),
            "divergence": lambda: ingest.divergence(store),
            "layout": lambda: ingest.layout(store),
            "audit": lambda: ingest.audit(store),
        }
    if reference is not None:
        questions["compare"] = lambda: ingest.compare(store, ingest.open_store(reference / _STORE))
    statements, problems = {}, {}
    for name, question in questions.items():
        try:
            statements[name] = tuple(READERS[name](question().to_dict()))
        except UsageError:  # the question does not apply: replicas of one rank
            statements[name] = ()
        except Exception as exc:  # noqa: BLE001  (an answer that is none is a result, too)
            problems[name] = f"{type(exc).__name__}: {exc}"
    return Asked(statements, problems)


def _anomalies(known: Mapping[str, Any]) -> Iterator[Statement]:
    for incident in known["incidents"]:
        if incident["severity"] not in _SERIOUS:
            continue
        operator = _operator(incident)
        rank = incident.get("rank")
        yield Statement(
            "anomalies",
            f"{incident['severity']}: {incident['summary']}",
            _places(incident.get("tensor", ""), operator),
            incident["first_step"],
            (rank,) if rank is not None else tuple(incident.get("ranks", ())),
            _cause(incident, incident["kind"] if incident["kind"] in _WORDS else ""),
            _admits(incident),
        )


def _origin(known: Mapping[str, Any]) -> Iterator[Statement]:
    if known.get("op_name") is None or known["how"] == "recorded":
        return
    operator = _operator(known)
    cause = _cause(known, "nan")
    text = f"{known['what']} {known['how']} in {operator}"
    yield Statement("origin", text, _places(operator), known["step"], (known["rank"],), cause)


def _divergence(known: Mapping[str, Any]) -> Iterator[Statement]:
    for finding in known.get("misplaced", ()):
        yield _misplaced("divergence", finding)
    for broken in known.get("broken", ()):
        operator = _operator(broken)
        ranks = tuple(broken.get("ranks", ()))
        text = f"{operator} broke: its inputs are equal"
        is_open = not broken["has_majority"]
        yield Statement("divergence", text, _places(operator), broken["step"], ranks, "", is_open)
    for odd in known.get("odd", ()):
        name, ranks, step = odd["first"]["name"], tuple(odd.get("ranks", ())), odd["first_step"]
        text = f"off since step {step}: {name}"
        is_open = not odd["has_majority"]
        yield Statement("divergence", text, _places(name), step, ranks, _cause(odd), is_open)


def _layout(known: Mapping[str, Any]) -> Iterator[Statement]:
    for finding in known.get("findings", ()):
        yield _misplaced("layout", finding)


def _misplaced(question: str, known: Mapping[str, Any]) -> Statement:
    text, ranks = f"{known['kind']}: {known.get('text')}", tuple(known.get("ranks", ()))
    cause = _cause(known, known["kind"])
    return Statement(question, text, _places(known["name"]), known["step"], ranks, cause, _admits(known))


def _compare(known: Mapping[str, Any]) -> Iterator[Statement]:
    first = known.get("first")
    if known["verdict"] != "different":
        return
    if first is None:
        yield Statement("compare", f"different: {'; '.join(known['notes'])}")
        return
    text = f"{first['verdict']}: {first.get('reason')}; {first.get('says')}"
    sides = [[first.get(f"{what}_{side}") for side in "ab"] for what in ("name", "step", "rank")]
    name, step, rank = (b if a in (None, "") else a for a, b in sides)
    # A tensor that was put together is that of all ranks that hold a part.
    ranks = first.get("ranks") or first.get("ranks_a") or ([] if rank is None else [rank])
    ranks = tuple(one for one in ranks if isinstance(one, int))  # not "... and 2 more"
    yield Statement("compare", text, _places(name), step, ranks, _cause(first), _admits(first))


def _audit(known: Mapping[str, Any]) -> Iterator[Statement]:
    for failure in known.get("failures", ()):
        text = f"{failure['identity']}: {failure['what']}"
        ranks, places = (failure["rank"],), _places(failure["name"])
        step = failure["steps"][0]
        yield Statement("audit", text, places, step, ranks, _cause(failure), _admits(failure))


#: By question: how its answer, as plain values, is read. Members that are empty may be missing.
READERS: dict[str, Callable[[Mapping[str, Any]], Iterator[Statement]]] = {
    "anomalies": _anomalies,
    "origin": _origin,
    "divergence": _divergence,
    "layout": _layout,
    "audit": _audit,
    "compare": _compare,
}


def _operator(known: Mapping[str, Any]) -> str:
    return ".".join(filter(None, (known.get("op_type"), known.get("op_name"))))


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
