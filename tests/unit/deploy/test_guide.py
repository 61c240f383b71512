"""The guide for operators: the commands that it gives."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from distributed import Client, LocalCluster, Security

from tests.charts import find, objects

DOCS = Path(__file__).parents[3] / "docs"
DEPLOYMENT = (DOCS / "deployment.md").read_text()


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


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DEPLOYMENT, re.MULTILINE | re.DOTALL)


def test_values_of_the_guide_give_two_workers_on_each_host() -> None:
    [text] = blocks("yaml")
    rendered = objects(yaml.safe_load(text) | {"dask": {"tls": {"source": "certManager"}}})
    pod = find(rendered, "DaemonSet", "-watcher")["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["initContainers"]] == ["worker-0", "worker-1"]
    for name in re.findall(r"(?:ds|deploy|cronjob)/run1-([\w-]+)", DEPLOYMENT):
        assert [manifest for manifest in rendered if manifest["metadata"]["name"] == f"run1-{name}"], name


def test_policy_of_the_guide_permits_multipart_uploads() -> None:
    lifecycle, policy, *_ = map(json.loads, blocks("json"))
    assert "AbortIncompleteMultipartUpload" in lifecycle["Rules"][0]
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert {"s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"} <= actions
