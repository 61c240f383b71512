"""A host with several users: what another user can reach of a running `watch`, and plant for it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has none
import pytest

from tests.cli import Running, run, start
from tests.stores import DumpLibrary

pytestmark = [pytest.mark.dask, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
#: Modules that the watcher or a worker imports after its cluster was started.
LATE_MODULES = ("numcodecs", "s3fs", "zarr", "numba", "xarray", "google_crc32c")


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports of a process and of all its children."""
    watcher = psutil.Process(pid)
    return sorted(
        connection.laddr.port
        for process in [watcher, *watcher.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    )


def intrude(uid: int, ports: list[int]) -> str:
    """Return what another user is answered by any of the ports."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.intruder", *map(str, [uid, *ports])],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    return done.stdout


def wait_for_commit(watching: Running) -> None:
    watching.wait_until(lambda: watching.events("step_committed"), timeout_s=60)


def test_workers_of_watch_open_no_port(dumps: DumpLibrary, tmp_path: Path) -> None:
    """Whoever is let in by Dask runs code as the user of the watcher."""
    words = ("watch", dumps["nan-log-2rank"] / "dump", "--store", tmp_path / "run.zarr")
    with start(*words, env={"DUMP_INGEST_WORKERS": "2"}) as watching:
        wait_for_commit(watching)
        assert listening_ports(watching.pid) == []
        assert watching.terminate() == 0


def test_the_intruder_knows_how_to_get_in(cluster_port: int, other_user: int) -> None:
    """An open scheduler lets it in: so workers of a command are better off without one."""
    assert f"runs code as uid {os.getuid()}" in intrude(other_user, [cluster_port])


def test_modules_planted_among_temporary_files_are_not_imported(
    dumps: DumpLibrary, tmp_path: Path, other_user: int
) -> None:
    """Dask looks for modules in its directory for temporary files, whoever has created it."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    marker = tmp_path / "planted-code-ran"
    for name in ("dask-scratch-space", f"dump-ingest-{os.getuid()}", f"dask-scratch-space-{os.getuid()}"):
        planted = shared / name
        planted.mkdir()
        for module in LATE_MODULES:
            (planted / f"{module}.py").write_text(f"open({str(marker)!r}, 'a').write({module!r})\n")
        planted.chmod(0o777)
        os.chown(planted, other_user, other_user)
    # Also not from the working directory.
    run(
        *("ingest", dumps["nan-log-2rank"] / "dump", "--store", tmp_path / "run.zarr"),
        env={"TMPDIR": str(shared)},
        cwd=shared / "dask-scratch-space",
    )
    assert not marker.exists(), marker.read_text()


def test_others_can_neither_enter_nor_read_what_is_among_temporary_files(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    words = ("watch", dumps["nan-log-2rank"] / "dump", "--store", tmp_path / "run.zarr")
    open_to_others: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.001):
            for entry in list(shared.iterdir()):
                try:
                    mode = entry.stat().st_mode
                except FileNotFoundError:
                    continue
                if mode & 0o077:
                    open_to_others.add(entry.name)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with start(*words, env={"TMPDIR": str(shared)}) as watching:
            wait_for_commit(watching)
            assert watching.terminate() == 0
    finally:
        ended.set()
        looking.join()
    assert open_to_others == set()
