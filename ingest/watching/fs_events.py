"""File events as an alarm clock: they make the watcher scan early, and are never trusted further."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import watchfiles

#: Watching 10,000 directories takes 0.8 s to set up, in which no other thread of the process runs: what the
#: dump has at the start comes first. Until then, and on file systems without events, polling goes on.
_AFTER_S = 5.0
#: How long changes are gathered, and how often it is looked whether there are any, in milliseconds.
_GATHER_MS, _LOOK_MS = 250, 200
#: File systems of this machine: its kernel hears of each change, whoever makes it.
_LOCAL = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "zfs"])


@contextmanager
def watch_events(root: Path, on_change: Callable[[], object], hears_all: threading.Event) -> Iterator[None]:
    """Call `on_change` soon after something below `root` changes, where the file system reports it.

    `hears_all` is set for as long as every change is reported. Network file systems, exhausted watches and
    unreadable directories report nothing: polling goes on.
    """
    stop = threading.Event()

    def listen() -> None:
        if stop.wait(_AFTER_S):
            return
        is_local = file_system_of(root, Path("/proc/self/mountinfo").read_text(errors="replace")) in _LOCAL
        events = watchfiles.watch(
            root,
            stop_event=stop,
            debounce=_GATHER_MS,
            step=_LOOK_MS,
            rust_timeout=1000,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        try:
            for number, changes in enumerate(events):
                if is_local:
                    hears_all.set()
                if changes or not number:  # what came before the watches were set up was not heard of
                    on_change()
        except (OSError, RuntimeError):  # too many watches: events are only a convenience
            return
        finally:
            hears_all.clear()

    thread = threading.Thread(target=listen, name="file-events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=2)


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that has a path; "" if it is not known.

    Args:
        path: the path.
        mounts: the text of /proc/self/mountinfo, see proc_pid_mountinfo(5).
    """
    places = {".": ""}
    for line in mounts.splitlines():
        mounted, _, source = line.partition(" - ")
        if len(fields := mounted.split(" ")) > _MOUNT_POINT:
            # Spaces and such in it are octal; a later mount hides an earlier one.
            place = fields[_MOUNT_POINT].encode().decode("unicode_escape")
            places[place] = source.partition(" ")[0]
    resolved = path.resolve()
    return next((places[str(above)] for above in (resolved, *resolved.parents) if str(above) in places), "")


_MOUNT_POINT = 4
