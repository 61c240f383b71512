"""The next dump, as values: its configuration, what it costs, and what it will answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ingest.dump_configs.model import WrittenConfig
from ingest.questions.next_dump.suspicion import Suspect
from ingest.reader import notebook
from ingest.reader.ranges import named_ranges
from ingest.reader.text import counted, printable
from ingest.units import human_bytes

#: Suspects that the text names.
_NAMED = 12


@dataclass(frozen=True, slots=True)
class DumpEstimate:
    """What the next dump will cost."""

    files: int
    """Files of tensors."""
    nbytes: int
    """Their bytes."""
    seconds: float | None
    """What dumping adds to the time of the job; None if the store does not know how long dumping took."""
    full_files: int
    """The files of a dump of all operators, of the same steps and ranks."""
    full_nbytes: int
    run_nbytes: int
    """Bytes of graphs and other files that every dump has, as in the store."""
    seconds_unknown: str = ""
    """Why the time is not known; "" if it is."""

    @property
    def share(self) -> float:
        """The bytes, as a share of those of a full dump; NaN if that is empty."""
        return self.nbytes / self.full_nbytes if self.full_nbytes else float("nan")


@dataclass(frozen=True, slots=True)
class NextDump:
    """What to dump next."""

    config: WrittenConfig
    about: str
    """What it is about, in one sentence."""
    suspects: tuple[Suspect, ...]
    """The operators that it dumps, the most important one first."""
    left_out: tuple[Suspect, ...]
    """Operators that did not fit into the budget."""
    estimate: DumpEstimate
    answers: tuple[str, ...]
    """What it will answer that the dump in the store cannot."""
    notes: tuple[str, ...]
    """What is not certain, or not possible."""

    def __str__(self) -> str:
        """Return the text that `dump-ingest next` prints besides the configuration."""
        return "\n".join(map(printable, _lines(self)))

    def _repr_html_(self) -> str:
        return notebook.block(f"{self}\n\n{self.config.text}")

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values."""
        return {
            "system": self.config.system,
            "file_name": self.config.file_name,
            "config": self.config.text,
            "use": self.config.use,
            "about": self.about,
            "ranks": list(self.config.ranks),
            "steps": list(self.config.steps),
            "suspects": [_suspect_dict(suspect) for suspect in self.suspects],
            "left_out": [_suspect_dict(suspect) for suspect in self.left_out],
            "estimate": asdict(self.estimate),
            "answers": list(self.answers),
            "notes": list(self.notes),
        }


def _suspect_dict(suspect: Suspect) -> dict[str, Any]:
    return {**suspect.operator._asdict(), "worth": suspect.worth, "why": suspect.why}


def _lines(answer: NextDump) -> Iterator[str]:
    config, estimate = answer.config, answer.estimate
    yield f"Next dump ({config.system}): {answer.about}"
    steps, ranks = named_ranges("step", config.steps), named_ranges("rank", config.ranks)
    yield f"  {counted(len(answer.suspects), 'operator')}, {steps}, {ranks}"
    for suspect in answer.suspects[:_NAMED]:
        yield f"    {suspect.operator.op_type} ({suspect.operator.op_name}): {suspect.why}"
    if len(answer.suspects) > _NAMED:
        yield f"    {len(answer.suspects) - _NAMED} more"
    unknown = f"time not known: {estimate.seconds_unknown}" if estimate.seconds_unknown else "time not known"
    seconds = unknown if estimate.seconds is None else _time(estimate.seconds)
    share = f", {estimate.share:.2%} of a full dump" if estimate.full_nbytes else ""
    yield f"  about {counted(estimate.files, 'file')}, {human_bytes(estimate.nbytes)}{share}; {seconds}"
    if estimate.run_nbytes:
        yield f"  and {human_bytes(estimate.run_nbytes)} of graphs and other files, which every dump has"
    if answer.left_out:
        smallest = answer.left_out[0].operator
        yield (
            f"  {counted(len(answer.left_out), 'operator')} beyond the budget, "
            f"the first: {smallest.op_type} ({smallest.op_name})"
        )
    for title, texts in (("It will answer", answer.answers), ("Notes", (*answer.notes, *config.notes))):
        if texts:
            yield ""
            yield title
            yield from (f"  {text}" for text in texts)


def _time(seconds: float) -> str:
    if seconds < 1:
        return "less than 1 s"
    return f"about {seconds:.0f} s" if seconds < 600 else f"about {seconds / 60:.0f} min"
