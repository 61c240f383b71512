"""Run a real S3 object store on this machine: Ceph's monitor, one OSD and the S3 gateway."""

import json
import signal
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fsspec

from tests.servers.process import LoopbackServer, answers, free_port, listens, run_tool

PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")

Store = Literal["memstore", "bluestore"]
Daemon = Literal["mon", "osd", "gateway"]

# Short paxos intervals, one replica and few placement groups, so that the cluster starts within a second.
# The gateway's cache is off: to keep it coherent, each change would wait half a minute for a killed gateway.
_CONF = """\
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon_port}/0]
ms_bind_msgr1 = false
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = {root}/keyring
run_dir = {root}
admin_socket =
log_file =
log_to_stderr = true
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_data_avail_warn = 2
mon_data_avail_crit = 1

[mon]
mon_data = {root}/mon
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
mon_tick_interval = 1

[osd]
osd_data = {root}/osd
osd_objectstore = {store}
osd_memory_target = 1073741824
memstore_device_bytes = 8589934592
bluestore_block_size = 21474836480
bluestore_block_db_create = false
bluestore_block_wal_create = false

[client.gateway]
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw_thread_pool_size = 64
rgw_cache_enabled = false
rgw_run_sync_thread = false
rgw_override_bucket_index_max_shards = 1
rgw_bucket_quota_ttl = 0
rgw_gc_obj_min_wait = 2
rgw_gc_processor_period = 5
rgw_gc_processor_max_time = 5
"""


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A bucket, an address in it, and the options that fsspec needs to open the address."""

    name: str
    storage_options: dict[str, Any]

    @property
    def url(self) -> str:
        """The address for the store of a test."""
        return f"s3://{self.name}/store"


class CephS3(LoopbackServer):
    """An S3 object store that runs for the duration of the `with` block.

    `memstore` keeps objects in memory: they survive a killed gateway, but not a killed OSD. `bluestore` keeps
    them on disk, where they survive both, but takes some seconds longer to start. `gateway_settings` are
    further Ceph options of the gateway, such as `rgw_max_concurrent_requests`.
    """

    access_key = "test-access-key"
    secret_key = "test-secret-key"  # noqa: S105 - of a store that dies with the test

    def __init__(
        self, *, store: Store = "memstore", gateway_settings: Mapping[str, str] | None = None
    ) -> None:
        self._store = store
        self._gateway_settings = dict(gateway_settings or {})

    @property
    def endpoint_url(self) -> str:
        """The address to which S3 clients connect."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options that fsspec needs for `s3://` addresses; JSON values only."""
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "client_kwargs": {"endpoint_url": self.endpoint_url, "region_name": "default"},
            "config_kwargs": {"s3": {"addressing_style": "path"}},
            "use_listings_cache": False,
        }

    def make_bucket(self, name: str) -> S3Bucket:
        """Create a bucket that belongs to the test user."""
        bucket = S3Bucket(name, self.storage_options)
        fsspec.filesystem("s3", **bucket.storage_options).mkdir(name)
        return bucket

    def set_quota(self, bucket: str, nbytes: int | None) -> None:
        """Limit the bucket to `nbytes`, from the next request on; None removes the limit.

        Ceph rounds the size of each object up to a multiple of 4 KiB.
        """
        scope = ["--quota-scope=bucket", f"--bucket={bucket}"]
        if nbytes is None:
            self._admin("quota", "disable", *scope)
        else:
            self._admin("quota", "set", *scope, f"--max-size={nbytes}")
            self._admin("quota", "enable", *scope)

    def kill_gateway(self) -> None:
        """Kill the gateway (SIGKILL). Requests in flight break; objects that it acknowledged survive."""
        self._servers.signal("gateway", signal.SIGKILL)

    def start_gateway(self) -> None:
        """Start the gateway at the same address as before, and return when it serves requests."""
        self._servers.start("gateway", ["radosgw", "-f", "-n", "client.gateway", *self._conf])
        self._servers.wait_for("gateway", lambda: answers(self._port, "/"), timeout_s=60)

    def kill_osd(self) -> None:
        """Kill the OSD (SIGKILL). Requests stall until it is started again."""
        if self._store == "memstore":
            raise ValueError("a killed OSD with memstore loses all objects: use CephS3(store='bluestore')")
        self._servers.signal("osd", signal.SIGKILL)

    def start_osd(self) -> None:
        """Start the OSD and return when the cluster counts it as up."""
        if self._servers.alive("osd"):
            return
        # The cluster counts a killed OSD as up for some time, but this epoch changes only when it is back.
        before = self._osd_up_since()
        self._servers.start("osd", ["ceph-osd", "-f", "-i", "0", *self._conf])
        self._servers.wait_for("osd", lambda: self._osd_up_since() not in (None, before), timeout_s=60)

    def pause(self, daemon: Daemon) -> None:
        """Suspend a daemon (SIGSTOP): its connections stay open, but it does not answer."""
        self._servers.signal(daemon, signal.SIGSTOP)

    def resume(self, daemon: Daemon) -> None:
        """Resume a suspended daemon (SIGCONT)."""
        self._servers.signal(daemon, signal.SIGCONT)

    @contextmanager
    def paused(self, daemon: Daemon) -> Iterator[None]:
        """Keep a daemon suspended for the duration of the `with` block."""
        self.pause(daemon)
        try:
            yield
        finally:
            self.resume(daemon)

    def log_tail(self, daemon: Daemon, lines: int = 20) -> str:
        """Return the end of a daemon's log."""
        return self._servers.log_tail(daemon, lines)

    @property
    def _conf(self) -> list[str]:
        return ["-c", str(self._servers.root / "ceph.conf")]

    def _bring_up(self, root: Path) -> None:
        self._port, self._mon_port = free_port(), free_port()
        self._write_conf(root)
        self._start_monitor(root)
        osd_uuid = str(uuid.uuid4())
        self._ceph("osd", "new", osd_uuid)
        run_tool(["ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd_uuid, *self._conf])
        self.start_osd()
        self.start_gateway()
        keys = [f"--access-key={self.access_key}", f"--secret-key={self.secret_key}"]
        self._admin("user", "create", "--uid=test", "--display-name=test", *keys)

    def _write_conf(self, root: Path) -> None:
        self._fsid = str(uuid.uuid4())
        conf = _CONF.format(
            fsid=self._fsid, root=root, store=self._store, port=self._port, mon_port=self._mon_port
        )
        conf += "".join(f"{name} = {value}\n" for name, value in self._gateway_settings.items())
        (root / "ceph.conf").write_text(conf)
        (root / "osd").mkdir()

    def _start_monitor(self, root: Path) -> None:
        keyring, monmap = str(root / "keyring"), str(root / "monmap")
        caps = [word for service in ("mon", "osd", "mgr") for word in ("--cap", service, "allow *")]
        run_tool(["ceph-authtool", keyring, "--create-keyring"])
        for name in ("mon.", "client.admin", "client.gateway", "osd.0"):
            run_tool(["ceph-authtool", keyring, "--gen-key", "-n", name, *caps])
        address = f"[v2:127.0.0.1:{self._mon_port}]"
        run_tool(["monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", address, monmap])
        run_tool(["ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring, *self._conf])
        self._servers.start("mon", ["ceph-mon", "-f", "-i", "a", *self._conf])
        self._servers.wait_for("mon", lambda: listens(self._mon_port), timeout_s=30)

    def _osd_up_since(self) -> int | None:
        """Return the epoch of the cluster map in which the OSD came up, or None while it is down."""
        info: dict[str, int] = json.loads(self._ceph("osd", "info", "0", "--format=json"))
        return info["up_from"] if info["up"] else None

    def _ceph(self, *args: str) -> str:
        return run_tool(["ceph", *self._conf, *args])

    def _admin(self, *args: str) -> str:
        return run_tool(["radosgw-admin", "-n", "client.gateway", *self._conf, *args])
