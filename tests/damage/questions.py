"""What is asked of a store, through the command itself: all of it in this process."""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.cli import end_here
from tests.damage.whole_store import NAN_STEP, WholeStore, consolidate, promptly
from tests.page_server import RunningPage
from workers.errors import DumpIngestError

#: Prefixes of what only some object of the view says, or that a round of the consolidator renews.
_OF_VIEW = ("consolidated/", "findings/")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    text: str
    said: str
    """To people, besides: on stderr."""
    is_crash: bool = False

    @property
    def rows(self) -> set[str] | None:
        """The rows of a list that was printed as JSON; None for another answer."""
        try:
            answer = json.loads(self.text)
        except ValueError:
            return None
        return {json.dumps(row, sort_keys=True) for row in answer} if isinstance(answer, list) else None


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what it may change."""

    name: str
    ask: Callable[[WholeStore], Answer]
    writes: tuple[str, ...] = ()
    """Prefixes of the objects that it may write; none if it changes nothing, and for one that mends."""
    mends: bool = False
    """Whether it writes what is damaged."""
    is_list: bool = False
    """Whether each row of the answer is right or wrong by itself."""
    reports: bool = False
    """Whether the answer itself is about damage."""

    @property
    def changes(self) -> bool:
        """Whether it may change the store."""
        return self.mends or bool(self.writes)


def _command(name: str, *words: str | Path, is_list: bool = False) -> Question:
    def ask(whole: WholeStore) -> Answer:
        return _run(name.split(maxsplit=1)[0], whole.store, *words, "--json")

    return Question(name, ask, is_list=is_list)


def _listing(name: str, *words: str) -> Question:
    return _command(name, *words, is_list=True)


def _run(*words: object) -> Answer:
    try:
        done = end_here(*words)
    except Exception:  # noqa: BLE001  (a question must not raise any error)
        return Answer(-1, "", traceback.format_exc(limit=-6), is_crash=True)
    return Answer(done.code, done.stdout, done.stderr, is_crash="Traceback" in done.stderr + done.stdout)


def _compare(whole: WholeStore) -> Answer:
    return _run("compare", f"{whole.store}@1,{NAN_STEP}", f"{whole.store}@0,{NAN_STEP}", "--json")


def _export(whole: WholeStore) -> Answer:
    """Export everything; the answer is the content of the files."""
    out = whole.root / "out"
    shutil.rmtree(out, ignore_errors=True)
    done = _run("export", whole.store, out, "--json")
    files = sorted(path for path in out.rglob("*") if path.is_file())
    exported = [f"{path.relative_to(out)} {sha256(path.read_bytes()).hexdigest()}" for path in files]
    return Answer(done.code, json.dumps(exported), done.text + done.said, done.is_crash)


def _consolidate(whole: WholeStore, *, check: bool = False) -> Answer:
    try:
        done: Any = consolidate(whole.objects, check=check)
    except DumpIngestError as exc:
        return Answer(1, "", f"{exc.message} {exc.hint or ''}")
    except Exception:  # noqa: BLE001  (nor does the consolidator raise another one)
        return Answer(-1, "", traceback.format_exc(limit=-6), is_crash=True)
    return Answer(0, "", str(done))


def _page(question: str) -> Question:
    def ask(whole: WholeStore) -> Answer:
        try:
            with RunningPage(whole.store) as page:
                got = page.get(f"/api/v1/runs/{whole.store.name}/{question}")
        except DumpIngestError as exc:
            return Answer(1, "", f"{exc.message} {exc.hint or ''}")
        except Exception:  # noqa: BLE001
            return Answer(-1, "", traceback.format_exc(limit=-6), is_crash=True)
        is_good = got.status == 200
        damaged = got.headers.get("Damaged-Steps", "")
        said = f"damaged: {damaged}" if is_good else got.text
        return Answer(0 if is_good else got.status, got.text if is_good else "", said, got.status == 500)

    return Question(f"serve {question.partition('?')[0]}", ask)


def _gc(whole: WholeStore) -> Answer:
    """Plan what goes if one step of each rank is kept; the answer is what goes."""
    planned = _run("gc", whole.store, "--keep-last", "1", "--json")
    try:
        plan = json.loads(planned.text)
    except ValueError:
        return planned
    actions = [
        {name: action[name] for name in ("what", "rank", "step", "generation", "path")}
        for action in plan["actions"]
        if action["what"] != "announcement"  # what ends a change of which nothing says that it ended
    ]
    return replace(planned, text=json.dumps({"actions": actions, "notes": plan["notes"]}))


def _repair(whole: WholeStore, *words: str) -> Answer:
    return _run("repair", whole.store, *words, "--json")


QUESTIONS = (
    _listing("ls"),
    _listing("ls tensors", "--tensors"),
    _listing("ls files", "--files"),
    _listing("find", "--where", "nan_count > 0 or max > 3"),
    _listing("find percentile", "--where", "p99 > 2"),
    _listing("find cubes", "--where", "nan_count > 0 or max > 3", "--consolidated"),
    _command("origin"),
    _command("divergence"),
    _listing("precision"),
    _listing("quantiles", "*Log*"),
    _listing("trend", "*Log*output*"),
    _command("anomalies"),
    _listing("anomalies findings", "--findings"),
    _command("show", "*Log*output*", "--rank", "1", "--step", str(NAN_STEP)),
    _listing("outliers", "--step", str(NAN_STEP)),
    Question("compare", _compare),
    Question("export", _export),
    _page("steps"),
    _page("incidents"),
    _page("matrix?stat=max"),
    replace(_command("verify"), reports=True),
    replace(_command("repair"), reports=True),
    Question("gc", _gc, reports=True),
    Question("consolidate", _consolidate, writes=_OF_VIEW),
    Question("consolidate --check", lambda whole: _consolidate(whole, check=True), writes=_OF_VIEW),
    Question(
        "repair --apply", lambda whole: _repair(whole, "--apply"), writes=_OF_VIEW, mends=True, reports=True
    ),
)


def ask(question: Question, whole: WholeStore) -> Answer:
    """Return the answer to a question."""
    with promptly():
        return question.ask(whole)
