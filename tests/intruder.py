"""Another user of the host, who tries to be let in by every port: `python -m tests.intruder UID PORT...`.

Prints a line for each port that answers, and what it answered. Being let in by Dask means to run code there.
"""

import asyncio
import os
import sys
import urllib.error
import urllib.request

from distributed import Client
from distributed.comm.core import connect

_TIMEOUT_S = 3


async def _identity(address: str) -> str:
    comm = await connect(address, timeout=_TIMEOUT_S)
    try:
        await comm.write({"op": "identity", "reply": True})
        return str(await asyncio.wait_for(comm.read(), _TIMEOUT_S))
    finally:
        comm.abort()


def _over_dask(port: int) -> str:
    """Ask who is there."""
    try:
        return asyncio.run(_identity(f"tcp://127.0.0.1:{port}"))
    except (OSError, TimeoutError):
        return ""


def _over_http(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_TIMEOUT_S) as answer:
            return f"HTTP {answer.status}"
    except urllib.error.HTTPError as exc:
        return f"HTTP {exc.code}"
    except (OSError, ValueError):
        return ""
    except Exception:  # noqa: BLE001  (whatever is not HTTP)
        return ""


def _run_code(port: int) -> str:
    """Have a scheduler say as whom it runs code."""
    address = f"tcp://127.0.0.1:{port}"
    try:
        with Client(address, timeout=_TIMEOUT_S, set_as_default=False) as client:
            return f"runs code as uid {client.run_on_scheduler(os.getuid)}"
    except Exception:  # noqa: BLE001  (not a scheduler that lets us in)
        return ""


def main() -> None:
    """Become the other user, and try all ports."""
    uid, *ports = map(int, sys.argv[1:])
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    for port in ports:
        answer = _over_dask(port)
        if answer:
            answer = _run_code(port) or answer
        answer = answer or _over_http(port)
        if answer:
            print(port, answer[:200], flush=True)


if __name__ == "__main__":
    main()
