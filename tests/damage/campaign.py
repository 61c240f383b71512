"""Damage objects one by one, ask everything about each damage, judge the answers, and restore the store."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from tests.damage.objects import Inventory, StoredObject
from tests.damage.questions import QUESTIONS, Answer, Question, ask
from tests.damage.spoil import Damage, damages_of
from tests.damage.whole_store import WholeStore
from workers.store.backends.local import LocalObjects

#: After this time, an answer is taken for one that never comes.
_HANGS_S = 60
#: What a message may tell a user to do.
_HINT = re.compile(
    r"dump-ingest \w+|repair|consolidate|verify|ermission|may not be read|--check|--rebuild|ingest",
    re.IGNORECASE,
)


#: Texts in an answer that are about damage.
_OF_DAMAGE = re.compile(r'"[^"]*damaged: [^"]*"')
#: Objects of which nobody but `verify` notices that they were replaced as a whole, and the questions that are
#: wrong then: those that read the view, or parts of tensors. See docs/reliability.md.
_UNNOTICED = (
    (r"consolidated/", "find cubes|trend|serve matrix"),
    (r"rank_.*/tensors/.*/c/", "origin|anomalies|serve incidents"),
)
#: Without it, a step does not exist.
_COMMIT = re.compile(r"rank_\d+/(step_\d+|run)/zarr\.json")


class Outcome(StrEnum):
    """What an answer is worth."""

    UNREAD = "not asked: it does not look at the object"
    SAME = "that of the undamaged store"
    UNCOMMITTED = "as if the step, which has lost its commit, had never been committed"
    UNNOTICED = "wrong, as documented, because an object was replaced by another whole one"
    NAMED = "names the damage"
    WITHOUT_HINT = "names the damage, but not what to do"
    WRONG = "WRONG"
    SILENT = "FAILS WITHOUT NAMING THE OBJECT"
    CRASH = "CRASHES"
    HANGS = "HANGS"
    LOSES = "CHANGES WHAT IS GOOD"

    @property
    def is_fault(self) -> bool:
        """Whether no command may answer so."""
        return self.name in ("WRONG", "SILENT", "CRASH", "HANGS", "LOSES")


@dataclass(frozen=True, slots=True)
class Case:
    """One question about one damage of one object."""

    stored: StoredObject
    damage: str
    question: str
    outcome: Outcome
    detail: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return it as plain values."""
        return {
            "outcome": self.outcome.name,
            "kind": self.stored.kind,
            "key": self.stored.key,
            "damage": self.damage,
            "question": self.question,
            "detail": self.detail,
        }

    def __str__(self) -> str:
        return (
            f"{self.outcome}: {self.question} | {self.stored.key} | {self.damage}\n    {self.detail[-1500:]}"
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """A question, its answer about the undamaged store, and what it looks at there."""

    question: Question
    answer: Answer
    looked_at: frozenset[str]
    """Keys that were read, and prefixes that were listed."""

    def looks_at(self, stored: StoredObject, damage: Damage) -> bool:
        """Return whether the damage may show in the answer."""
        if damage.keeps_size:
            return stored.key in self.looked_at
        return any(stored.key == key or _is_below(stored.key, key) for key in self.looked_at)


def _is_below(key: str, directory: str) -> bool:
    return not directory or key.startswith(f"{directory}/")


@contextmanager
def _watched() -> Iterator[set[str]]:
    """Collect the keys of the objects that are read, and the prefixes that are listed, in any store."""
    looked_at: set[str] = set()
    path_of = LocalObjects._path

    def see(objects: LocalObjects, key: str) -> str:
        looked_at.add(key)
        return path_of(objects, key)

    with patch.object(LocalObjects, "_path", see):
        yield looked_at


class Campaign:
    """Works on one store. It is as it was after each case."""

    def __init__(self, whole: WholeStore, names: Collection[str] = ()) -> None:
        """Ask questions about the undamaged store: those with these names, or all."""
        self.whole = whole
        self.inventory = Inventory(whole)
        self._good = whole.root / "good.zarr"
        self._link(whole.store, self._good)
        self._files = dict(_files_below(whole.store))
        self._known = [self._learn(question) for question in QUESTIONS if not names or question.name in names]

    def cases(self, stored: StoredObject, damage: Damage) -> Iterator[Case]:
        """Yield the outcome of every question about one damage."""
        asked = [known for known in self._known if known.looks_at(stored, damage)]
        for known in self._known:
            if known not in asked:
                yield Case(stored, damage.name, known.question.name, Outcome.UNREAD)
        readers = [known for known in asked if not known.question.changes]
        for together in (readers, *([known] for known in asked if known.question.changes)):
            if together:
                yield from self._ask(together, stored, damage)

    def _ask(self, together: Sequence[_Known], stored: StoredObject, damage: Damage) -> Iterator[Case]:
        """Ask questions one after the other, then look at what they have changed, and restore it."""
        damage.spoil(self.whole.store / stored.key)
        try:
            for known in together:
                try:
                    with _limited(_HANGS_S):
                        answer = ask(known.question, self.whole)
                except _HangsError:
                    outcome, detail = Outcome.HANGS, ""
                else:
                    outcome, detail = _judge(known, answer, stored, damage)
                yield Case(stored, damage.name, known.question.name, outcome, detail)
        finally:
            changed = self._changed()
            self._restore({stored.key, *changed})
        if lost := self._lost(together[-1], stored, changed):
            yield Case(stored, damage.name, together[-1].question.name, Outcome.LOSES, f"{lost}")

    def _learn(self, question: Question) -> _Known:
        with _watched() as looked_at:
            answer = ask(question, self.whole)
        self._restore(self._changed())
        again = ask(question, self.whole)
        self._restore(self._changed())
        assert not answer.is_crash, answer.said
        assert answer.text == again.text, question.name
        return _Known(question, answer, frozenset(looked_at))

    def _lost(self, known: _Known, stored: StoredObject, changed: Collection[str]) -> list[str]:
        """Return what was changed that had to stay."""
        return [
            key
            for key in sorted(changed)
            if key != stored.key
            and not key.startswith(known.question.writes)
            and not (known.question.mends and _is_of_mending(key, self._files, self.whole.store))
        ]

    def _changed(self) -> set[str]:
        """Return the keys of what is not as in the undamaged store."""
        now = dict(_files_below(self.whole.store))
        return {key for key, _ in now.items() ^ self._files.items()}

    def _restore(self, changed: Collection[str]) -> None:
        """Make these objects what they are in the undamaged store."""
        for key in changed:
            path = self.whole.store / key
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            if key in self._files:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(self._good / key, path)

    @staticmethod
    def _link(source: Path, target: Path) -> None:
        shutil.copytree(source, target, copy_function=os.link)


def _files_below(root: Path, prefix: str = "") -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield the key of each file below a directory, and what tells it from another one."""
    with os.scandir(root / prefix) as entries:
        for entry in entries:
            key = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(root, f"{key}/")
            else:
                stat = entry.stat(follow_symlinks=False)
                yield key, (stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _is_of_mending(key: str, files: Collection[str], store: Path) -> bool:
    """Return whether an object was added, not removed; or is the commit that points to added objects."""
    return key not in files or (
        (store / key).exists() and re.fullmatch(r"rank_\d+/(step_\d+|run)/zarr\.json", key) is not None
    )


def _judge(known: _Known, answer: Answer, stored: StoredObject, damage: Damage) -> tuple[Outcome, str]:
    transcript = f"exit code {answer.code}\n{answer.text[:600]}\n{answer.said}"
    said = answer.said + (answer.text if known.question.reports or answer.code else "")
    said += " ".join(_OF_DAMAGE.findall(answer.text))
    if answer.is_crash:
        return Outcome.CRASH, answer.said
    if (answer.code, answer.text) == (known.answer.code, known.answer.text):
        return Outcome.SAME, ""
    more = (answer.rows or set()) - (known.answer.rows or set()) if known.question.is_list else set()
    if damage.is_removal and _COMMIT.fullmatch(stored.key) and not more:
        return Outcome.UNCOMMITTED, ""
    if damage.is_replacement and any(
        re.match(kind, stored.key) and re.match(names, known.question.name) for kind, names in _UNNOTICED
    ):
        return Outcome.UNNOTICED, ""
    if more or not _names(said, stored):
        is_silent = answer.code and not answer.text
        return Outcome.SILENT if is_silent else Outcome.WRONG, f"{transcript}\nmore: {sorted(more)[:2]}"
    return Outcome.NAMED if _HINT.search(said) else Outcome.WITHOUT_HINT, transcript


def _names(text: str, stored: StoredObject) -> bool:
    """Return whether a text says which object is damaged, or at least which step or array has it."""
    rank, step = stored.place
    parts = stored.key.split("/")
    if parts[0] == "pool":
        return parts[2] in text or re.search(rf"\bstep {step}\b", text) is not None
    if parts[0] == "consolidated":
        return "consolidated" in text
    if parts[0] == "findings":
        return "findings" in text
    if not rank:
        return "zarr.json" in text
    if not step:
        return re.search(rf'rank_{rank}\b|rank {rank}\b|"rank": {rank}\b', text) is not None
    named = rf'rank_{rank}/step_{step}\b|rank {rank},? step {step}\b|"rank": {rank}, "step": {step}\b'
    return re.search(named, text) is not None


class _HangsError(Exception):
    """No answer came."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _HangsError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(campaign: Campaign, *, flips: int, seed: int, kinds: str = "") -> Iterator[Case]:
    """Yield all cases of the kinds of objects that match a regular expression."""
    for stored in campaign.inventory.representatives:
        if re.search(kinds, stored.kind):
            for damage in damages_of(stored, campaign.whole.store, flips, seed):
                yield from campaign.cases(stored, damage)
