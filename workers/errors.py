"""What can go wrong, split by what the caller should do about it.

DumpIngestError
├── UsageError              the request is wrong: change it
│   ├── StoreMissing        no store where one was named: create it, or name another place
│   ├── TensorsRemoved      values of a step that is kept without them: ask for its statistics
│   └── StepRemoved         a step that has gone: look again
├── DumpError               the dump is bad: another attempt will not help
│   ├── UnreadableTensor    one file is damaged: quarantine it, go on with the rest
│   ├── FileError           one file, which is named, keeps a step from being converted
│   │   ├── UnreadableFile  the disk does not deliver its bytes: plan again without them
│   │   └── PoisonedFile    it kills the process that reads it: plan again, reading less of it
│   ├── AccessDenied        files of another user: change the owner or the mode
│   ├── SourceChanged       a file changed while it was read: scan again
│   └── SourceDiffers       a file differs from what the store has: keep both, and look
├── ClusterError            no Dask scheduler or workers: retry when they are back
│   └── WorkerDied          the process that did the work died: repeat the work in a separate process
└── StoreError              the store refused
    ├── StoreDenied         wrong credentials or no permission: do not retry
    ├── StoreUnavailable    worth another attempt
    │   ├── StoreSilent     no answer, not even a refusal
    │   └── ClockSkewed     the clocks of host and store are too far apart: set them right
    ├── StoreFormatError    written by another version, or no store at all
    └── DamagedStore        stored bytes are wrong: stop and look
"""

from __future__ import annotations


class DumpIngestError(Exception):
    """Base of all errors of this project.

    Errors cross process boundaries, between Dask workers and the client: all other arguments of
    a subclass are keywords with defaults, so that pickle restores them.
    """

    hint = ""
    """The next step for a human."""
    reason = "other"
    """A short name for metrics; the closed set is `REASONS`."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(DumpIngestError):
    """The request cannot be carried out as it was made."""

    reason = "usage"


class StoreMissing(UsageError):
    """No store exists yet at a place that could hold one."""


class TensorsRemoved(UsageError):
    """The step is kept without the payloads of its tensors; index, digests and statistics are kept."""

    hint = "Its index, digests, statistics and files are kept: `find`, `origin`, `trend`, `divergence`."


class StepRemoved(UsageError):
    """The step was removed or committed again since it was opened."""

    hint = "Open the store again, or run the command again: `dump-ingest ls` lists what is there now."


class DumpError(DumpIngestError):
    """The dump is bad; another attempt will not help."""

    reason = "dump"


class UnreadableTensor(DumpError):
    """One file does not hold the tensor it claims to hold."""


class FileError(DumpError):
    """One file keeps a step from being converted."""

    def __init__(self, message: str, *, path: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        """Relative to the dump."""


class UnreadableFile(FileError):
    """The disk does not deliver the bytes of one file."""


class PoisonedFile(FileError):
    """One file, alone, kills every process that reads it."""

    reason = "poison"
    hint = (
        "The file is quarantined. Look for the death in the log of the worker and of the kernel; to have it "
        "read again, with more memory or another version, touch the file."
    )


class AccessDenied(DumpError, PermissionError):
    """Dump files belong to another user."""

    reason = "access_denied"
    hint = (
        "MindSpore writes files as 0400 and directories as 0700: run dump-ingest as the training "
        "user, or give it read access (for instance: setfacl -R -m u:USER:rX DUMP)."
    )


class SourceChanged(DumpError):
    """A file of the dump changed or vanished between planning and reading."""

    reason = "source_changed"
    hint = "The directory is scanned again, and the step is planned again."


class SourceDiffers(DumpError):
    """A file has the size and the time of the committed one, but other bytes."""

    reason = "source_differs"
    hint = (
        "Nothing of the step is deleted. If a program wrote into the file and set its time back, `ingest "
        "--recheck`, or a watcher that is idle, takes it again. Otherwise the fault is in dump-ingest: keep "
        "the file, and report it."
    )


class ClusterError(DumpIngestError):
    """The Dask cluster did not do the work: out of reach, restarted, or a worker died."""

    reason = "cluster"


class WorkerDied(ClusterError):
    """The process that did the work died, or ran out of memory."""


class StoreError(DumpIngestError):
    """The store refused."""


#: What to do about a file that may not be read or written.
OWNER_HINT = "Check owner and mode of the file and of the directories above it."


class StoreDenied(StoreError, PermissionError):
    """The store does not accept these credentials, or they may not do this."""

    reason = "store_denied"
    hint = (
        "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL (or the profile or role) in the "
        "environment of this process and of the Dask workers; for a directory, its owner and mode."
    )


class StoreUnavailable(StoreError):
    """The store did not answer, or answered with a passing error."""

    reason = "store_unavailable"
    hint = (
        "Nothing half done is visible; run the same command again when the store is back. If it is up: "
        "`dump-ingest doctor --store URL` checks the URL and the way to it."
    )


class StoreSilent(StoreUnavailable):
    """The store accepted a request and did not answer, or stopped in the middle of an answer."""

    reason = "store_silent"
    hint = (
        "Nothing half done is visible; run the same command again when the store answers. `store_timeout_s` "
        "in the settings says how long to wait for progress."
    )


class ClockSkewed(StoreUnavailable):
    """The store refuses requests of a host whose clock is far from its own."""

    reason = "clock_skew"
    hint = (
        "Credentials are not the cause: S3 refuses signatures that are 15 minutes old, or come from the "
        "future. Set the clock of this host (`chronyc tracking`, `timedatectl`), or that of the store."
    )


class StoreFormatError(StoreError):
    """The store has a format that this version does not read."""

    reason = "store_format"


class DamagedStore(StoreError):
    """The bytes read back are not the bytes written."""

    reason = "damaged_store"
    hint = "Keep the source dump. `dump-ingest verify` names all damage, `dump-ingest repair` mends it."


#: All values of `DumpIngestError.reason`, for metrics that must exist before the first failure.
REASONS = (
    "access_denied",
    "clock_skew",
    "cluster",
    "damaged_store",
    "dump",
    "other",
    "poison",
    "source_changed",
    "source_differs",
    "store_denied",
    "store_format",
    "store_silent",
    "store_unavailable",
    "usage",
)


def as_error(what: str, exc: Exception) -> DumpIngestError:
    """Return an exception as an error of this project; `what` names the step."""
    if isinstance(exc, DumpIngestError):
        return exc
    if isinstance(exc, MemoryError):
        return WorkerDied(f"{what}: a worker ran out of memory")
    return DumpIngestError(f"{what}: {type(exc).__name__}: {exc}"[:500])
