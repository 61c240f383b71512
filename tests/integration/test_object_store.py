"""How many requests a real S3 store gets, and what faults of it do no harm."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from aiobotocore.httpsession import AIOHTTPSession
from distributed import Client

from ingest.api import DumpStore
from tests.object_store_contract import ObjectStoreContract
from tests.servers.ceph import PROGRAMS, CephS3, S3Bucket
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port, run_tool
from tests.stores import MadeDump, ingest_and_open, tensor_name
from workers.model import MIB
from workers.store.backends.remote import S3Objects
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore, Uploads
from workers.store.opening import connect, resolve

pytestmark = pytest.mark.s3


class Requests:
    """The HTTP requests of this process to S3, those that are sent again included."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        send = AIOHTTPSession.send

        async def count(session: AIOHTTPSession, request: object) -> object:
            self.sent.append(request.method)  # type: ignore[attr-defined]
            return await send(session, request)

        monkeypatch.setattr(AIOHTTPSession, "send", count)

    def of(self, question: Callable[[], object]) -> Counter[str]:
        """Return how many requests a question takes, by their methods."""
        self.sent.clear()
        question()
        return Counter(self.sent)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


@pytest.fixture
def url(s3_bucket: S3Bucket, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a store may be made, with credentials in the environment."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return s3_bucket.url


@pytest.fixture
def objects(url: str) -> ObjectStore:
    return connect(resolve(url))


@pytest.fixture
def https_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A bucket of a gateway that speaks HTTPS."""
    if any(shutil.which(program) is None for program in (*PROGRAMS, "openssl")):
        pytest.skip("not installed: Ceph or openssl")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "certificate.pem", free_port()
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    run_tool(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files])
    (tmp_path / "both.pem").write_text(key.read_text() + certificate.read_text())

    class HttpsGateway(CephS3):
        def _write_conf(self, root: Path) -> None:
            super()._write_conf(root)
            conf = root / "ceph.conf"
            https = f"ssl_endpoint=127.0.0.1:{port} ssl_certificate={tmp_path}/both.pem"
            conf.write_text(conf.read_text().replace("tcp_nodelay=1", f"tcp_nodelay=1 {https}"))

    with HttpsGateway() as ceph:
        bucket = ceph.make_bucket("over-https")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ceph.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ceph.secret_key)
        client = {
            "endpoint_url": f"https://127.0.0.1:{port}",
            "region_name": "default",
            "verify": str(certificate),
        }
        yield connect(resolve(bucket.url, {"client_kwargs": client}))


def test_https_works_without_further_settings(https_objects: ObjectStore) -> None:
    """By default, botocore sends checksums that Ceph refuses over HTTPS."""
    contents = {"small": b"small", "large": bytes(70 * MIB)}
    for key, data in contents.items():
        https_objects.put(key, data)
    assert https_objects.get_many(list(contents)) == contents


class TestContract(ObjectStoreContract):
    """What every backend does, S3 on a real gateway does, too."""

    @pytest.fixture
    def objects(self, url: str) -> ObjectStore:
        return S3Objects(StoreAddress(f"{url}/below"))


def test_an_object_is_one_request(objects: ObjectStore, requests: Requests) -> None:
    assert requests.of(lambda: objects.put("a", b"0123456789")) == {"PUT": 1}
    assert requests.of(lambda: objects.put_many({"b": b"1", "c": b"2"})) == {"PUT": 2}
    assert requests.of(lambda: objects.get("a")) == {"GET": 1}
    assert requests.of(lambda: objects.get("gone")) == {"GET": 1}
    assert requests.of(lambda: objects.get_many(["a", "b", "gone"])) == {"GET": 3}
    assert requests.of(lambda: objects.get_range("a", -4)) == {"GET": 1}
    assert requests.of(lambda: objects.get_range("a", 1, 4)) == {"GET": 1}
    assert requests.of(lambda: objects.children("")) == {"GET": 1}


def test_only_a_large_object_goes_in_parts(objects: ObjectStore, requests: Requests) -> None:
    small, large = bytes(40 * MIB), bytes(70 * MIB)
    assert requests.of(lambda: objects.put("small", small)) == {"PUT": 1}
    # Begun and ended by a POST each.
    assert requests.of(lambda: objects.put("large", large)) == {"POST": 2, "PUT": 3}
    assert objects.sizes() == {"small": len(small), "large": len(large)}


@pytest.fixture
def filled(url: str, tmp_path: Path) -> DumpStore:
    """Steps of three ranks, of tensors of 4 KiB."""
    dump = MadeDump(tmp_path / "dump")
    for rank in range(3):
        for step in range(4):
            for slot in range(20):
                values = np.random.default_rng([rank, step, slot]).normal(size=1024).astype(np.float32)
                dump.add(values, tensor_name(slot=slot), step=step, rank=rank)
    return ingest_and_open(dump.root, url)


def test_what_is_sent_survives_a_gateway_that_comes_back(url: str, ceph: CephS3, requests: Requests) -> None:
    """The clients send again by themselves, unless told otherwise."""
    objects = connect(resolve(url, {"config_kwargs": {"retries": {"max_attempts": 6}}}))
    contents = {f"shard/{number}": np.random.default_rng(number).bytes(8 * MIB) for number in range(6)}

    def upload() -> None:
        with Uploads(objects) as uploads:
            for number, (key, data) in enumerate(contents.items()):
                uploads.put(key, data)
                if number == 2:
                    ceph.kill_gateway()
                    restart.start()

    restart = threading.Timer(0.3, ceph.start_gateway)
    try:
        sent = requests.of(upload)
    finally:
        restart.join()
    assert sent["PUT"] > len(contents)
    assert all(objects.get(key) == data for key, data in contents.items())


@pytest.mark.dask
def test_workers_read_the_parts_of_views(filled: DumpStore, s3_cluster: DaskCluster) -> None:
    """What arrives at a worker finds the store with the credentials that are there."""
    expected = np.random.default_rng([0, 1, 7]).normal(size=1024).astype(np.float32)
    with Client(s3_cluster.address):
        dataset = xr.open_dataset(filled.url, engine="dump-ingest", rank=0, step=1, chunks={})
        np.testing.assert_array_equal(dataset["MatMul.net_MatMul-op0.output.7"].values, expected)
        operator = xr.open_zarr(filled.as_zarr(), group="rank_0/step_1/MatMul.net_MatMul-op0")
        np.testing.assert_array_equal(operator["output.7"].values, expected)
