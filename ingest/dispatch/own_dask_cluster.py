"""A Dask cluster of this process, which accepts no connection from anybody else.

A process that can talk to a Dask scheduler or worker runs code in it, and every user of a host can connect
to a port on its loopback interface. So these speak TLS with a certificate that is made for the run, and that
both ends of a connection must show. Its key is held in memory; worker processes get it through a pipe.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import os
import signal
import ssl
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, TypeVar, cast

import dask
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from distributed import Nanny, Security, SpecCluster
from distributed.worker_memory import parse_memory_limit

from workers.errors import ClusterError
from workers.host.paths import own_directory
from workers.plugin import PortlessWorker
from workers.scheduler import PortlessScheduler, keep_no_spans, replace_lost_workers

if TYPE_CHECKING:
    from distributed import SpecCluster


#: What Dask logs of processes that we have started ourselves says nothing to the user.
_QUIET_LOGGERS = ("distributed", "tornado.application", "bokeh")
_CLOSE_S = 5.0
Started = TypeVar("Started")


def start_dask_workers(start: Callable[[], Started]) -> Started:
    """Start a scheduler in this process and workers in others; return the result of `start`.

    The terminal sends Ctrl-C to all processes of its foreground group. Workers would die of it, while the
    main process waits for them. So they are started, now and whenever one dies, by threads in which the
    signal is blocked: a process inherits that from the thread that starts it.

    Raises:
        ClusterError: they do not start.
    """
    started: list[Started | BaseException] = []

    def start_shielded() -> None:
        # If it starts later, it unblocks the signal in the thread that needs it first.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            started.append(start())
        except BaseException as exc:  # noqa: BLE001  (raised where it is waited for)
            started.append(exc)

    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    starting = threading.Thread(target=start_shielded, name="dump-ingest-workers")
    # A daemon thread: a process that gets a signal to stop while they start does not wait for them.
    starting.daemon = True
    starting.start()
    starting.join()
    (outcome,) = started
    if isinstance(outcome, Exception):
        raise ClusterError(f"cannot start workers: {outcome}"[:500]) from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def end_dask_workers(cluster: SpecCluster) -> None:
    """End the workers at once, even in the middle of tasks, and the scheduler.

    Nothing of an unfinished step is visible: a single write makes a step visible.
    """
    for nanny in list(cluster.workers.values()):
        nanny.auto_restart = False
        pid = nanny.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    cluster.close(timeout=_CLOSE_S)


_log = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"
#: Some time after a worker was lost, Dask looks whether another one has its name, and closes its nanny
#: for good if there is none just then. A worker that is lost again, or starts slowly, would never come back.
_KEEP_NANNIES = {"distributed.deploy.lost-worker-timeout": "10000 days"}
#: For ever (RFC 5280, 4.1.2.5), so that no clock that jumps ends the connections of a run.
_VALIDITY = (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC))


class OwnDaskCluster:
    """A scheduler in this process, and worker processes, until it is closed."""

    def __init__(self, workers: int, resources: Mapping[str, float]) -> None:
        """Start everything.

        Args:
            workers: the number of worker processes, of one thread each.
            resources: the Dask resources that each of them offers.
        """
        with ExitStack() as stack:
            scratch = _scratch(stack)
            security = run_security()
            common = {"host": _LOOPBACK, "protocol": "tls://", "security": security}
            options = common | {
                "nthreads": 1,
                "memory_limit": parse_memory_limit("auto", 1, workers, logger=_log),
                "resources": dict(resources) or None,
                "silence_logs": logging.CRITICAL,
                "worker_class": PortlessWorker,
            }
            dask.config.set(_KEEP_NANNIES)  # it is read whenever a worker is lost
            # The scheduler takes its directory from nowhere else.
            with dask.config.set({"temporary-directory": scratch}):
                self.cluster = SpecCluster(
                    scheduler={"cls": PortlessScheduler, "options": common},
                    workers={number: {"cls": Nanny, "options": options} for number in range(workers)},
                    security=security,
                    silence_logs=logging.CRITICAL,
                )
            scheduler = cast("PortlessScheduler", self.cluster.scheduler)
            keep_no_spans(scheduler)
            replace_lost_workers(scheduler, math.inf)  # as often as the configuration of Dask says
            self._at_end = stack.pop_all()

    def close(self) -> None:
        """End the workers and the scheduler."""
        with self._at_end:
            end_dask_workers(self.cluster)


def run_security() -> Security:
    """Return TLS settings with a new key, so that only its holders can talk to each other.

    distributed.Security.temporary() does the same with an RSA key, which takes 300 times as long to make, and
    a certificate that begins when it is made and ends after a year.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dump-ingest")])
    begin, end = _VALIDITY
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    pairs: dict[str, Any] = {}
    for role in ("client", "scheduler", "worker"):
        pairs |= {f"tls_{role}_cert": certificate_pem, f"tls_{role}_key": key_pem}
    # Nothing is left to Dask's configuration, which may be about another cluster.
    return Security(
        require_encryption=True,
        tls_ca_file=certificate_pem,
        tls_ciphers=None,
        tls_min_version=ssl.TLSVersion.TLSv1_3,
        tls_max_version=None,
        **pairs,
    )


def _scratch(stack: ExitStack) -> str:
    """Return a directory for Dask's temporary files, in which it also looks for modules to import.

    Its default, /tmp/dask-scratch-space, may have been created by another user.
    """
    configured = dask.config.get("temporary-directory", None)
    directory = None if configured else own_directory()
    if directory is not None:
        return str(directory)
    return stack.enter_context(tempfile.TemporaryDirectory(prefix="dump-ingest-", dir=configured))
