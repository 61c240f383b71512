"""Where the inner chunks of objects are, kept between questions: a request less for each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

#: Indexes that are kept, of a few hundred bytes each: of 12 statistics over some hundred steps.
_KEPT = 16_384


@dataclass(eq=False)
class ShardIndexes:
    """The indexes at the ends of objects, by object and what it is a part of; safe to share between threads.

    Whoever asks names the state of the objects, too: an object that is written again has another one.
    """

    limit: int = _KEPT
    _known: OrderedDict[Hashable, bytes] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, name: Hashable) -> bytes | None:
        """Return an index; None if it is not known."""
        with self._lock:
            if name in self._known:
                self._known.move_to_end(name)
            return self._known.get(name)

    def keep(self, name: Hashable, index: bytes) -> None:
        """Keep an index; the one that was not asked for the longest goes."""
        with self._lock:
            self._known[name] = index
            if len(self._known) > self.limit:
                self._known.popitem(last=False)


#: Those of this process.
KNOWN = ShardIndexes()
