"""`dump-ingest ls`: what is in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from ingest.questions.question import Mode, Note, Option, Question, Ranks, Rows, Shown, Steps
from ingest.reader.catalog import Damage
from ingest.reader.dump_store import DumpStore
from ingest.reader.mesh import Coordinate, format_coordinates
from ingest.reader.step import Step, file_rows, overflow_rows, step_row
from ingest.reader.text import counted
from ingest.units import human_bytes
from workers.errors import DamagedStore

#: What heads each table, and what stands below.
_Columns = Mapping[str, Callable[[Any], object]]
_PLACE: _Columns = {
    "rank": itemgetter("rank"),
    "step": lambda row: "run" if row["step"] is None else row["step"],
}
_FILES: _Columns = {
    **_PLACE,
    "kind": itemgetter("kind"),
    "bytes": lambda row: human_bytes(row["nbytes"]),
    "source": itemgetter("source"),
    "problem": itemgetter("problem"),
}
_OVERFLOWS: _Columns = {
    **_PLACE,
    "unit": itemgetter("unit"),
    "stream": itemgetter("stream"),
    "task": itemgetter("task"),
    "operator": lambda row: f"{row['op_type']}.{row['op_name']}" if row["op_name"] else "not in the dump",
    "source": itemgetter("source"),
}
_MISSING: _Columns = {
    "what": attrgetter("what"),
    "name": attrgetter("name"),
    "rank": lambda item: "all" if item.rank is None else item.rank,
    "reason": attrgetter("reason"),
}
_STEPS: _Columns = {
    "rank": itemgetter("rank"),
    "mesh": lambda row: _mesh_text(row) or "-",
    "step": _PLACE["step"],
    "status": lambda row: row["status"] + ("" if row["has_tensors"] else ", no tensors"),
    "tensors": lambda row: row["tensors"] + row["statistics_only"],
    "files": itemgetter("files"),
    "NaN": itemgetter("nan_count"),
    "Inf": lambda row: row["pos_inf_count"] + row["neg_inf_count"],
    "overflows": itemgetter("overflows"),
    "problems": itemgetter("problems"),
    "raw": lambda row: human_bytes(row["raw_bytes"]),
    "stored": lambda row: human_bytes(row["stored_bytes"]),
    "committed (UTC)": lambda row: row["committed_at"][:19].replace("T", " "),
}
_WATCHERS: _Columns = {
    "watcher": attrgetter("url"),
    "state": lambda of: of.problem or "answers",
    "ranks": lambda of: None if of.problem else len(of.ranks),
    "settled": lambda of: None if of.problem else counted(of.settled, "step"),
    "pending": lambda of: (
        None if of.problem else counted(sum(rank.pending_steps for rank in of.ranks), "step")
    ),
    "bytes": lambda of: None if of.problem else human_bytes(sum(rank.pending_bytes for rank in of.ranks)),
    "lag": lambda of: None if of.problem else f"{max((rank.lag_s for rank in of.ranks), default=0):.0f} s",
    "disk, free": lambda of: None if of.problem or not of.disk else human_bytes(of.disk.free_bytes),
}


@dataclass(frozen=True, slots=True)
class _Token(Shown):
    token: str
    clock: str
    damaged: Sequence[Damage]
    left_out = ()

    def report(self) -> Iterator[str]:
        yield self.token

    def to_json(self) -> dict[str, str]:
        return {"token": self.token, "clock": self.clock, "away": ""}


def ls(store: DumpStore, rank: Ranks = None, step: Steps = None) -> Rows:
    """List the committed steps, or the tensors, files, problems or overflow records in them.

    If a step is damaged, it is named, the others are listed, and the exit code is 3.
    """
    damages: list[Damage] = []
    steps = store.select(rank, step, damages=damages)
    store.coordinates({opened.key.rank for opened in steps})  # all at once
    rows = list(map(step_row, steps))
    shown = [name for name in _STEPS if name != "mesh" or any(map(_mesh_text, rows))]
    return Rows(
        store.url,
        rows,
        {name: _STEPS[name] for name in shown},
        right=[*_STEPS][4:-1],
        spare=("files", "raw", "committed (UTC)", "mesh", "overflows", "stored", "Inf"),
        more=tuple(_mixed(rows)),
        damaged=damages,
    )


def _listed(
    store: DumpStore, rows_of: Callable[[Step], Iterable[Any]], given: Mapping[str, Any]
) -> tuple[list[Any], list[str], int]:
    damages: list[Damage] = []
    rows: list[Any] = []
    steps = store.select(given.get("rank"), given.get("step"), damages=damages)
    unread = []
    for step in steps:
        try:
            rows += rows_of(step)
        except DamagedStore as exc:
            unread.append(f"{step.key}: {exc.message.removeprefix(f'{step.key}: ')}")
    return rows, [*map(str, damages), *unread], len(steps) - len(unread)


def _in_steps(
    rows_of: Callable[[Step], Iterable[Any]], columns: _Columns, noun: str, right: Sequence[str]
) -> Callable[..., Rows]:

    def ask(store: DumpStore, _: object, **given: Any) -> Rows:
        rows, damaged, steps = _listed(store, rows_of, given)
        none = f"no {noun} in {counted(steps, 'step')}"
        return Rows(store.url, rows, columns, right, none=none, damaged=damaged)

    return ask


def _tensors(store: DumpStore, _: object, **given: Any) -> Rows:
    from ingest.questions.find import rows_of  # deferred: few ask

    rows, damaged, _steps = _listed(store, lambda step: step.tensors(), given)
    return rows_of(store.url, rows, damaged=damaged)


def _missing(store: DumpStore, _: object, rank: Ranks = None) -> Rows:
    from ingest.questions.missing import missing  # deferred: few ask

    damages: list[Damage] = []
    items = missing(store, rank, damages=damages)
    none = "no dump configuration in the store requests anything that is missing"
    return Rows(store.url, items, _MISSING, none=none, damaged=damages)


def _watched(store: DumpStore, addresses: str) -> Rows:
    # deferred: the page takes 0.5 s
    from ingest.cli.printing import explained
    from ingest.page.watchers import watchers

    told = watchers(store, addresses)
    steps = [row for watcher in told for row in watcher.steps]
    none = "the watchers that answer write to other stores"
    more = ("", *explained(steps).report()) if steps else ()
    return Rows(store.url, told, _WATCHERS, [*_WATCHERS][2:], none=none, more=more)


def _token(store: DumpStore, _: object) -> _Token:
    # deferred: the page takes 0.5 s
    from ingest.page.library import Moment
    from ingest.page.rendering import clock

    moment = Moment.of(store)
    return _Token(moment.token, clock(moment.read_at), moment.damages)


def _mesh_text(row: Mapping[str, Any]) -> str:
    return format_coordinates({axis: Coordinate(*place) for axis, place in row["coordinates"].items()})


def _mixed(rows: Sequence[dict[str, Any]]) -> Iterator[Note]:
    """Yield which ranks have steps from several dumps: a moved one, or another one by mistake."""
    steps_by_root: dict[int, dict[str, list[int]]] = {}
    for row in rows:
        if row["step"] is not None:
            steps_by_root.setdefault(row["rank"], {}).setdefault(row["root"], []).append(row["step"])
    for rank, roots in steps_by_root.items():
        if len(roots) > 1:
            places = ", ".join(
                f"{root} ({counted(len(steps), 'step')}, {min(steps)} to {max(steps)})"
                for root, steps in roots.items()
            )
            yield Note(f"rank {rank} comes from {len(roots)} dump directories: {places}", "warning")


_CHOICES = frozenset({"rank", "step"})


def _flag(name: str, words: str, ask: Callable[..., Shown], takes: frozenset[str] = _CHOICES) -> Mode:
    return Mode(name, Option(words, short="-t" * (name == "tensors")), default=False, ask=ask, takes=takes)


QUESTION = Question(
    ls,
    (
        "ls s3://bucket/run.zarr             every step",
        "ls run.zarr -r 1 -n 8 --tensors     the tensors of rank 1, step 8",
        "ls run.zarr --watchers node1:9108   what is still to come",
    ),
    limit=None,
    takes_mesh=True,
    modes=(
        _flag("tensors", "List the tensors of the steps.", _tensors),
        _flag(
            "files",
            "List the files that are not tensors.",
            _in_steps(partial(file_rows, problems=False), _FILES, "file that is not a tensor", ("bytes",)),
        ),
        _flag(
            "problems",
            "List quarantined files, and files with names that are not understood.",
            _in_steps(partial(file_rows, problems=True), _FILES, "problem", ("bytes",)),
        ),
        _flag(
            "overflows",
            "List the overflow records and the operators that overflowed.",
            _in_steps(overflow_rows, _OVERFLOWS, "overflow record", ("stream", "task")),
        ),
        _flag(
            "missing",
            "List what the configuration of the dump asked for and is not in the store.",
            _missing,
            frozenset({"rank"}),
        ),
        Mode(
            "watchers",
            Option(
                "Where watchers serve their metrics: to show lag, backlog, disk, and what steps wait for.",
                "HOST:PORT,...",
            ),
            default="",
            ask=_watched,
            takes=frozenset(),
        ),
        _flag(
            "token",
            "Print a word that changes when a step is committed, changed, removed or evaluated.",
            _token,
            frozenset(),
        ),
    ),
)
