"""The guide for operators: what it computes, and the commands that it gives."""

import re
import subprocess
from pathlib import Path

import pytest
from distributed import Client, LocalCluster, Security
from hypothesis import given
from hypothesis import strategies as st

from deploy.sizing import JOBS, Job, puts, size, table, tasks

DOCS = Path(__file__).parents[3] / "docs"
DEPLOYMENT = (DOCS / "deployment.md").read_text()


def test_table_is_what_the_script_prints() -> None:
    assert table(JOBS) in (DOCS / "sizing.md").read_text()
    assert max(job.ranks for job in JOBS) == 10_000


@given(st.integers(1, 20_000), st.floats(1, 1e12), st.floats(0.1, 1e5), st.floats(1.1, 10))
def test_more_to_do_never_takes_less(ranks: int, step_bytes: float, every_s: float, more: float) -> None:
    one = size(Job(ranks, step_bytes, every_s))
    for other in (
        size(Job(ranks, step_bytes * more, every_s)),
        size(Job(ranks, step_bytes, every_s / more)),
        size(Job(ranks * 2, step_bytes, every_s)),
    ):
        assert other.workers >= one.workers >= 1
        assert other.upload > one.upload
        assert other.puts_per_s >= one.puts_per_s
        assert other.dollars_per_month > one.dollars_per_month


def test_workers_keep_up_with_what_was_measured() -> None:
    """Two workers took 722 MB in 2.68 s: planned with, they have a third to spare."""
    assert size(Job(1, 722e6, 2.68)).workers >= 3
    assert size(Job(1, 722e6, 2.68 * 1.6)).workers <= 2


def test_requests_and_tasks_of_a_measured_step() -> None:
    assert 29 <= puts(223e6) <= 45  # 29 objects, the large ones in parts
    assert tasks(722e6) == 7
    assert tasks(85e3) < 1


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the guide makes with openssl."""
    directory = tmp_path_factory.mktemp("tls")
    [script] = re.findall(r"^```bash\n(.*?)^```$", DEPLOYMENT, re.MULTILINE | re.DOTALL)
    subprocess.run(["bash", "-euc", script], cwd=directory, check=True, capture_output=True)
    return directory


def test_keys_are_their_owners_alone(certificates: Path) -> None:
    for name in ("ca.key", "tls.key"):
        assert (certificates / name).stat().st_mode & 0o077 == 0


@pytest.mark.dask
def test_dask_lets_in_who_has_a_certificate_of_the_guide(certificates: Path) -> None:
    made = {"tls_ca_file": str(certificates / "ca.pem"), "require_encryption": True}
    for role in ("scheduler", "worker", "client"):
        made[f"tls_{role}_cert"] = str(certificates / "tls.pem")
        made[f"tls_{role}_key"] = str(certificates / "tls.key")
    security = Security(**made)
    options = {
        "processes": False,
        "n_workers": 1,
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
    }
    with LocalCluster(protocol="tls", security=security, **options) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with Client(address, security=security, set_as_default=False) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        without = Security(tls_ca_file=made["tls_ca_file"], require_encryption=True)
        with pytest.raises((OSError, TypeError, RuntimeError)):
            Client(address, security=without, timeout=2, set_as_default=False)


def test_variables_of_the_guide_are_those_of_the_units() -> None:
    units = (DOCS.parent / "deploy" / "systemd" / "dump-ingest-.service.d" / "10-common.conf").read_text()
    named = set(re.findall(r"DASK_DISTRIBUTED__COMM__TLS__\w+", DEPLOYMENT))
    assert named
    assert named == set(re.findall(r"DASK_DISTRIBUTED__COMM__TLS__\w+", units))


def test_every_way_of_deploying_has_its_files() -> None:
    for path in re.findall(r"\b(?:deploy|helm)/[\w./-]*\w", DEPLOYMENT):
        assert (DOCS.parent / path).exists(), path
