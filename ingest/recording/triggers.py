"""What makes a black box save its ring: what looks wrong in a step, SIGTERM, triggers that all ranks share.

Ranks share triggers by files in one directory, which each looks through after a step, and not by
a collective: no rank waits for another one, and one that hangs keeps nobody from saving.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from ingest.layouts.black_box import MAX_WHY, OUTSIDE, Trigger, first_of_each, write_whole
from workers.arrays.statistics import FIELDS
from workers.dump.model import TensorName

_COUNT, _NAN, _POS_INF, _NEG_INF, _MEAN, _L2_NORM = (
    FIELDS.index(name) for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count", "mean", "l2_norm")
)
#: A spike is compared with the median of this many values, once there are enough of them.
_SERIES, _ENOUGH = 64, 16
#: It exceeds the median by this many median absolute deviations; each counts as a twentieth of the median at
#: least, so a value that hardly ever changes must exceed it by half.
_DEVIATIONS, _LEAST_DEVIATION = 10, 0.05
#: What makes the median absolute deviation of normally distributed values their standard deviation.
_NORMAL = 1.4826


class Suspicions:
    """Looks at the statistics of each tensor as it comes, and tells what was not there before.

    NaN counts if the tensor never had one in this process; infinities too, but not those of the first step,
    because masks have them. Spikes are of the norm of all gradients, and of each number that
    `Recorder.save` takes, such as the loss.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._had: dict[str, set[TensorName]] = {"NaN": set(), "Inf": set()}
        self._series: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_SERIES))
        self._squares = 0.0

    def see(self, step: int, name: TensorName, row: tuple[float, ...] | None) -> str:
        """Return what is wrong with a tensor; "" for nothing.

        Args:
            step: its step.
            name: its name.
            row: its statistics, in the order of `FIELDS`; None if its elements are not numbers.
        """
        if row is None:
            return ""
        self._first = step if self._first is None else self._first
        named = f"{name.op_type} {name.op_name} {name.io}.{name.slot}"
        key = name._replace(sequence=-1)
        new = [
            kind
            for kind, count in (("NaN", row[_NAN]), ("Inf", row[_POS_INF] + row[_NEG_INF]))
            if count > 0 and key not in self._had[kind]
        ]
        for kind in new:
            self._had[kind].add(key)
        if self._first == step and "Inf" in new:
            new.remove("Inf")
        if new:
            return f"{new[0]} in {named}"
        if name.op_type == "Gradient":
            self._squares += row[_L2_NORM] ** 2 if math.isfinite(row[_L2_NORM]) else 0.0
        elif name.op_type == "saved" and row[_COUNT] == 1:
            return self._spike(named, row[_MEAN])
        return ""

    def end(self, *, is_whole: bool = True) -> str:
        """Return what is wrong with the step as a whole; "" for nothing. Begins the next one.

        Args:
            is_whole: whether all modules were looked at: else the norm is not that of all gradients.
        """
        norm, self._squares = math.sqrt(self._squares), 0.0
        return self._spike("the norm of all gradients", norm) if norm and is_whole else ""

    def _spike(self, what: str, value: float) -> str:
        if not math.isfinite(value):
            return ""  # what is not finite is told once
        series = self._series[what]
        middle = median(series) if len(series) >= _ENOUGH else math.inf
        deviation = _NORMAL * median(abs(one - middle) for one in series) if math.isfinite(middle) else 0.0
        series.append(value)
        if value - middle <= _DEVIATIONS * max(deviation, _LEAST_DEVIATION * abs(middle)):
            return ""
        return f"{what} is {value:.6g}, the median of {len(series) - 1} steps is {middle:.6g}"


class SavedSteps(NamedTuple):
    """The steps that one incident saves: triggers may follow the first one in them."""

    trigger: Trigger
    is_beyond_budget: bool

    def has(self, step: int) -> bool:
        """Return whether a step is to be saved."""
        return self.trigger.first <= step <= self.trigger.last


class Triggers:
    """The triggers of a run.

    Args:
        directory: of their files; the same for all ranks. It is made when it is needed.
        rank: of this process.
        before, after: how many step numbers are saved before and after that of a trigger.
        limit: how many incidents may be saved in this run.
    """

    def __init__(self, directory: Path, rank: int, before: int, after: int, limit: int) -> None:
        self.directory = directory
        self._rank, self._before, self._after, self._limit = rank, before, after, limit
        self._triggers: dict[str, Trigger] = {}
        self._look()
        self._earlier = list(self._triggers.values())

    def add(self, step: int, why: str) -> None:
        """Trigger, unless the steps around are to be saved anyway.

        Raises:
            OSError: the file cannot be written.
        """
        if any(incident.trigger.step <= step <= incident.trigger.last for incident in self.incidents()):
            return
        # A trigger of step 0 cannot be about earlier ones.
        first = max(step - self._before, 0)
        trigger = Trigger(step, self._rank, why[:MAX_WHY], first, step + self._after)
        write_trigger(self.directory, trigger)
        self._triggers[trigger.file_name] = trigger

    def look(self, step: int) -> None:
        """Read what other ranks have written, and whether anybody outside has triggered.

        Args:
            step: the one to which a trigger from outside belongs.

        Raises:
            OSError: the directory cannot be read.
        """
        for name in self._look():
            path = self.directory / name
            try:
                why = path.read_bytes()[:MAX_WHY].decode("utf-8", "replace").strip()
                path.unlink()
            except FileNotFoundError:
                continue  # another rank was quicker, and tells all
            self.add(step, why or f"the file {name}")

    def _look(self) -> list[str]:
        """Read new triggers, and return the names of files from outside."""
        try:
            names = sorted(path.name for path in self.directory.iterdir())
        except FileNotFoundError:
            return []
        for name in names:
            if name.startswith("step_") and name not in self._triggers:
                self._triggers[name] = msgspec.json.decode((self.directory / name).read_bytes(), type=Trigger)
        return [name for name in names if name.startswith(OUTSIDE)]

    def is_spent(self, step: int) -> bool:
        """Return whether as many incidents as may be were saved, and a step belongs to none of them."""
        incidents = self.incidents()
        spent = len(incidents) + len(first_of_each(self._earlier)) >= self._limit
        return spent and not any(one.has(step) and not one.is_beyond_budget for one in incidents)

    def incidents(self) -> list[SavedSteps]:
        """Return the incidents of this process, the earliest first."""
        earlier = len(first_of_each(self._earlier))
        new = set(self._triggers.values()).difference(self._earlier)
        return [
            SavedSteps(trigger, number >= self._limit)
            for number, trigger in enumerate(first_of_each(new), earlier)
        ]


def write_trigger(directory: Path, trigger: Trigger) -> None:
    """Write the file of a trigger.

    Raises:
        OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / trigger.file_name, msgspec.json.encode(trigger))


def save_on_sigterm(save: Callable[[], bool]) -> Callable[[], None]:
    """Save when the process is asked to end, and let it end as it would have; return what undoes this.

    A thread does it, because Python runs no handler while the main thread waits for a collective. Does
    nothing outside of the main thread, or if the program reads signals by a wakeup file itself.

    Args:
        save: saves, and returns whether it could in time.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        return lambda: None
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    others = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)
        os.close(reading)
        os.close(writing)
        return lambda: None

    def handle(number: int, frame: Any) -> None:
        if callable(before):
            before(number, frame)

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, before)
            signal.set_wakeup_fd(-1)

    def undo() -> None:
        restore()
        os.close(writing)

    signal.signal(signal.SIGTERM, handle)
    # Or workers of a data loader that are asked to end would end the training instead.
    os.register_at_fork(after_in_child=restore)
    arguments = (reading, save, before == signal.SIG_DFL)
    threading.Thread(target=_await_sigterm, args=arguments, name="dump-ingest-sigterm", daemon=True).start()
    return undo


def _await_sigterm(reading: int, save: Callable[[], bool], ends: bool) -> None:  # noqa: FBT001  (arguments of a thread)
    while numbers := os.read(reading, 64):
        if signal.SIGTERM in numbers:
            save()
            if ends:
                # As Python would, but it can only from the main thread.
                ctypes.CDLL(None).signal(signal.SIGTERM, 0)
                os.kill(os.getpid(), signal.SIGTERM)
    os.close(reading)
