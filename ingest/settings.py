"""Settings: flags, then `DUMP_INGEST_*` variables, then a YAML file, then defaults.

No setting holds a credential: those come from the environment chain of the storage library.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from ingest.disk import parse_threshold
from ingest.environment import (
    CONFIG_VARIABLE,
    ENV_PREFIX,
    RECORD_VARIABLE,
    TOKEN_VARIABLE,
    TRIGGER_TOKEN_VARIABLE,
)
from workers.errors import UsageError
from workers.host.credentials import masked_values, refuse_in_options, refuse_in_url
from workers.host.resources import CpuLimits, parse_cpus

_MIB = 1024 * 1024
_NUMBER = re.compile(r"[0-9]{1,18}")
#: A wrong value of these may be a credential, whatever it looks like.
_NEVER_SHOWN = frozenset(["store", "store_options", "scheduler", "webhook", "dask"])


#: Variables of these are JSON, as in the settings file.
_JSON = frozenset(["store_options", "dask"])


def _setting(description: str, **given: Any) -> Any:
    return Field(description=description, **given)


class Settings(BaseModel):
    """All settings. `dump-ingest config schema` prints the description of each field."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    store: str | None = _setting(
        "The store: a directory or any fsspec URL, such as s3://bucket/run.zarr.", default=None
    )
    store_options: dict[str, Any] = _setting(
        "Options for fsspec. Credentials belong in the environment (AWS_ACCESS_KEY_ID, ...), not here.",
        default_factory=dict,
    )
    store_timeout_s: float = _setting(
        "How long a request to the store may go on without progress, in seconds; then it is given up.",
        default=60.0,
        gt=0,
    )
    scheduler: str | None = _setting(
        "Address of a Dask scheduler (tcp://host:8786), or its scheduler file. None: start own workers.",
        default=None,
    )
    scheduler_timeout_s: float = _setting(
        "How long to wait for the scheduler and for its first worker, in seconds.", default=30.0, gt=0
    )
    # In the environment as on the command line, not as JSON: each host has its own.
    worker_resources: dict[str, float] = _setting(
        "Dask resources that workers must offer (host-n17=1): restricts tasks to the host that has "
        "the files.",
        default_factory=dict,
    )
    host: str | None = _setting(
        "The name of this host in the store. None: its host name, which containers change at each start.",
        default=None,
    )
    workers: int | None = _setting(
        "How many worker processes to start without a scheduler. None: one per processor, at most eight.",
        default=None,
        ge=1,
    )
    nice: int = _setting(
        "Priority of the command and its own workers: 19 gives way to everything else.",
        default=0,
        ge=0,
        le=19,
    )
    cpus: str = _setting(
        "Processors of the command and its own workers, such as 0-3,8. Empty: all.", default=""
    )
    cpu_share: float = _setting(
        "The share of these processors that the command and its own workers use at most.",
        default=1.0,
        gt=0,
        le=1,
    )
    poll_s: float = _setting(
        "How often the dump is listed, in seconds. File events make it sooner: nothing relies on them.",
        default=1.0,
        gt=0,
    )
    quiet_s: float = _setting(
        "The last step of a rank is complete when nothing in it has changed for this many seconds.",
        default=10.0,
        ge=0,
    )
    settle_s: float = _setting("The same for a step that is followed by a later one.", default=1.0, ge=0)
    order: Literal["oldest", "newest"] = _setting(
        "Which steps of a backlog are ingested first.", default="oldest"
    )
    under_pressure: Literal["keep", "newest", "statistics"] = _setting(
        "While the dump's disk is nearly full: go on, ingest new steps first, or leave out tensors for now.",
        default="keep",
    )
    pressure_free: str = _setting(
        "The free space below which the dump's disk is nearly full: a share (10%), or bytes (200GB).",
        default="10%",
    )
    # In the environment as on the command line, not as JSON: each host has its own map.
    rank_map: dict[int, int] = _setting(
        "The rank of each device id (0=8,1=9), for dumps whose paths name only devices.", default_factory=dict
    )
    layout: str = _setting(
        "Patterns, with `;` between them, for a dump whose tree no layout "
        "covers:\nrank{rank}/step{step}/{module}.{io}.{slot}.pt",
        default="",
    )
    mesh: str = _setting(
        "How the ranks of the job are laid out (tp=2,dp=4), the last axis varies fastest; empty: as told.",
        default="",
    )
    keep_device_layout: bool = _setting(
        "Whether tensors stay in the accelerator's memory layout. Part of every fingerprint.", default=False
    )
    sketches: bool = _setting(
        "Whether histograms of tensors and digests of blocks are stored: answers after the tensors are gone.",
        default=True,
    )
    marginals: Literal["none", "large", "all"] = _setting(
        "The tensors whose marginals are stored, too, if `sketches` is set. `dump-ingest sketch` adds all.",
        default="large",
    )
    pool: bool = _setting(
        "Whether tensors that several ranks share are stored once. Needs a running `consolidate --follow`.",
        default=True,
    )
    black_box: int | None = _setting(
        "How many of the newest steps of each rank `watch` keeps tensors of, and around incidents. "
        "None: all.",
        default=None,
        ge=1,
    )
    replace: bool = _setting(
        "Whether steps that came from another dump directory may be replaced.", default=False
    )
    recheck_rate: ByteSize = _setting(
        "While `watch` is idle: bytes per second of committed dump files to read and compare again. 0: none.",
        default=ByteSize(16 * _MIB),
        ge=0,
    )
    recheck: bool = _setting(
        "Whether `ingest` reads all committed dump files again, and compares them with their digests.",
        default=False,
    )
    # In the environment as on the command line, not as JSON: each host has its own.
    continues: list[str] = _setting(
        "Other directories in which this dump was: their steps in the store are its own. Separated by `:`.",
        default_factory=list,
    )
    after_commit: Literal["keep", "delete"] = _setting(
        "What to do with committed dump files. They are read back before deletion: docs/retention.md.",
        default="keep",
    )
    keep_last: int = _setting(
        "With `after_commit` delete: how many of the newest steps of each rank stay in the dump.",
        default=1,
        ge=1,
    )
    keep_anomalous: bool = _setting(
        "With `after_commit` delete: whether steps with NaN, Inf, overflows or findings stay in the dump.",
        default=False,
    )
    consolidate: bool = _setting(
        "Whether `ingest` updates the consolidated view at its end, unless it uses a scheduler.", default=True
    )
    inflight_size: ByteSize = _setting(
        "Limit of the source bytes of all tasks in progress.", default=ByteSize(1024 * _MIB), gt=0
    )
    chunk_size: ByteSize = _setting(
        "Size of the inner chunks of the store, which is what a small read costs. Part of every fingerprint.",
        default=ByteSize(_MIB),
        ge=4096,
    )
    shard_size: ByteSize = _setting(
        "Size of a shard before compression: one object, held in memory by a task. Part of every "
        "fingerprint.",
        default=ByteSize(128 * _MIB),
        ge=4096,
    )
    job_size: ByteSize = _setting(
        "About how much one task reads. Part of every fingerprint.", default=ByteSize(128 * _MIB), ge=4096
    )
    rules: str | None = _setting(
        "YAML file that adds to the built-in anomaly rules, changes them, or switches them off.", default=None
    )
    webhook: str | None = _setting(
        "URL to which findings are posted. Its token comes from DUMP_INGEST_WEBHOOK_TOKEN, never from here.",
        default=None,
    )
    webhook_severity: Literal["info", "warning", "critical"] = _setting(
        "The mildest severity of findings that are posted.", default="warning"
    )
    page_url: str | None = _setting(
        "By what URL people reach `dump-ingest serve`: messages of the webhook and `origin` lead to it.",
        default=None,
    )
    drain_s: float = _setting(
        "After SIGTERM: how many seconds work in progress may take to finish.", default=30.0, ge=0
    )
    finish: bool = _setting(
        "Whether `watch` and `consolidate --follow` take everything that is there before they end.",
        default=False,
    )
    expected_ranks: int | None = _setting(
        "How many ranks the run is to have: fewer raise an alert. None: as rank tables say. 0: any number.",
        default=None,
        ge=0,
    )
    metrics: str | None = _setting(
        "Where `watch` serves /metrics: host:port. Empty: nowhere.", default="127.0.0.1:9108"
    )
    consolidator_metrics: str | None = _setting(
        "Where `consolidate --follow` serves /metrics: host:port. Empty: nowhere.", default="127.0.0.1:9109"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "The lowest level of messages that are logged.", default="info"
    )
    log_format: Literal["auto", "console", "json"] = _setting(
        "The format of log messages; auto: console on a terminal, JSON otherwise.", default="auto"
    )
    task_timeout_s: float = _setting(
        "How long a task may run on one worker, plus a second per MiB it reads; then the worker is replaced.",
        default=600.0,
        gt=0,
    )
    dask: dict[str, Any] = _setting(
        'Passed to dask.config.set, such as {"distributed.comm.timeouts.connect": "60s"}.',
        default_factory=dict,
    )

    @property
    def cpu_limits(self) -> CpuLimits:
        """What the command and its own workers may take of the processors."""
        return CpuLimits(self.nice, parse_cpus(self.cpus), self.cpu_share)

    @field_validator("store", "scheduler", "host", "rules", "webhook", "page_url")
    @classmethod
    def _not_empty(cls, value: str | None) -> str | None:
        return value or None  # `--store "$UNSET"` names no store

    @field_validator("store", "scheduler", "store_options")
    @classmethod
    def _no_credentials_to_the_store(cls, value: Any) -> Any:
        try:
            if isinstance(value, dict):
                refuse_in_options(value)
            else:
                refuse_in_url(value or "")
        except UsageError as exc:
            raise ValueError(f"{exc.message}. {exc.hint}") from None
        return value

    @property
    def store_arguments(self) -> dict[str, Any]:
        """What `open_store` takes besides the URL."""
        return {**self.store_options, "timeout_s": self.store_timeout_s}

    @field_validator("pressure_free", "cpus", mode="before")
    @classmethod
    def _text(cls, value: Any, field: ValidationInfo) -> str:
        text = str(value)  # in YAML, a number of bytes or a single processor is an integer
        parse: Callable[[str], object] = parse_cpus if field.field_name == "cpus" else parse_threshold
        parse(text)
        return text

    @field_validator("rank_map", mode="before")
    @classmethod
    def _device_and_rank(cls, value: Any) -> Any:
        if isinstance(value, str):
            pairs = _pairs(value)
            if not all(_NUMBER.fullmatch(number) for pair in pairs for number in pair):
                raise ValueError("must be device=rank pairs, such as 0=8,1=9")
            value = {int(device): int(rank) for device, rank in pairs}
            if len(value) < len(pairs):
                raise ValueError("gives two ranks to one device")
        return value

    @field_validator("continues", mode="before")
    @classmethod
    def _directories(cls, value: Any) -> Any:
        names = value.split(":") if isinstance(value, str) else value
        if isinstance(names, list) and not all(str(name).startswith("/") for name in names if name):
            raise ValueError("must be absolute paths, as `dump-ingest ls --json` shows them in `root`")
        return [name for name in names if name] if isinstance(names, list) else names

    @field_validator("worker_resources", mode="before")
    @classmethod
    def _name_and_amount(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return {name: float(amount) for name, amount in _pairs(value) if name or amount}
        except ValueError:
            raise ValueError("must be name=amount pairs, such as host-n17=1") from None

    @field_validator("worker_resources")
    @classmethod
    def _positive_amounts(cls, value: dict[str, float]) -> dict[str, float]:
        if any(not name or not 0 < amount < float("inf") for name, amount in value.items()):
            raise ValueError("must be names with amounts above 0, such as host-n17=1")
        return value

    @field_validator("rank_map")
    @classmethod
    def _one_device_each(cls, value: dict[int, int]) -> dict[int, int]:
        if len(set(value.values())) < len(value):
            raise ValueError("gives one rank to two devices")
        if any(number < 0 for pair in value.items() for number in pair):
            raise ValueError("must be numbers from 0")
        return value

    @field_validator("metrics", "consolidator_metrics")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if not value:
            return None
        host, colon, port = value.rpartition(":")
        if not colon or not port.isdecimal() or not host:
            raise ValueError("must be host:port, such as 0.0.0.0:9108")
        return value

    @field_validator("webhook", "page_url")
    @classmethod
    def _no_credentials(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be a URL such as https://host/path")
        if parts.username or parts.password:
            raise ValueError(
                "must hold no credentials; a token comes from the environment, see docs/rules.md"
            )
        return value


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split `a=b,c=d`; the second text is empty if `=` is missing."""
    partitions = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    return [(first.strip(), second.strip()) for first, _, second in partitions]


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and where each of them comes from."""

    settings: Settings
    origins: Mapping[str, str]
    """By setting: a flag, a variable, the path of the file, or `default`."""
    unknown_variables: tuple[str, ...]
    """Variables with our prefix that do not name a setting."""


def load(config: Path | None = None, **flags: Any) -> LoadedSettings:
    """Merge flags, environment, YAML file and defaults; the first of these wins.

    Args:
        config: the YAML file; default: the file that DUMP_INGEST_CONFIG names, if any.
        flags: settings from the command line, by name; None if not given.

    Raises:
        UsageError: the file cannot be read, a name is unknown, or a value is wrong.
    """
    if config is None and (path := os.environ.get(CONFIG_VARIABLE)):
        config = Path(path)
    from_file = {} if config is None else _read_yaml(config)
    from_environment = _read_environment()
    given = {name: value for name, value in flags.items() if value is not None}
    origins = {
        **dict.fromkeys(Settings.model_fields, "default"),
        **dict.fromkeys(from_file, str(config)),
        **{name: f"{ENV_PREFIX}{name.upper()}" for name in from_environment},
        **{name: f"--{name.removesuffix('_s').replace('_', '-')}" for name in given},
    }
    try:
        settings = Settings(**{**from_file, **from_environment, **given})
    except ValidationError as exc:
        raise UsageError(_explain(exc, origins), hint="See `dump-ingest config schema`.") from exc
    return LoadedSettings(settings, origins, _unknown_variables())


def _read_environment() -> dict[str, Any]:
    """Return the settings that variables give, whatever the case of their names; mappings as JSON.

    Raises:
        UsageError: a variable does not hold the JSON that it must hold.
    """
    variables = {name.upper(): value for name, value in os.environ.items()}
    given: dict[str, Any] = {}
    for name in Settings.model_fields:
        variable = f"{ENV_PREFIX}{name}".upper()
        if variable not in variables:
            continue
        given[name] = variables[variable]
        if name in _JSON:
            try:
                given[name] = json.loads(given[name])
            except ValueError as exc:
                raise UsageError(
                    f"{variable}: it must be JSON", hint="See `dump-ingest config schema`."
                ) from exc
    return given


def _unknown_variables() -> tuple[str, ...]:
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    known |= {CONFIG_VARIABLE, TOKEN_VARIABLE, TRIGGER_TOKEN_VARIABLE, RECORD_VARIABLE}
    return tuple(sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known))


def _read_yaml(path: Path) -> dict[str, Any]:
    from workers.host.yaml_file import parse, read_text  # deferred: yaml takes 0.02 s, and few have a file

    content = parse(read_text(path, hint="Name the file with --config."), str(path)).value
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(
            f"{path} does not hold settings", hint="Write lines such as `store: s3://bucket/run.zarr`."
        )
    return {str(name): value for name, value in content.items()}


def meant_setting(name: str) -> str:
    """Return a question whether another setting is meant than a misspelt one; "" if none is like it."""
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    """Return one message that names each wrong setting, where it comes from, and what is wrong."""
    mistakes = []
    for mistake in error.errors():
        name = str(mistake["loc"][0]) if mistake["loc"] else "settings"
        if mistake["type"] == "extra_forbidden":
            what = f"is not a setting{meant_setting(name)}"
        else:
            message = mistake["msg"].removeprefix("Value error, ").replace("Input should", "must", 1)
            message = message.partition(", unable to parse")[0]
            what = message[:1].lower() + message[1:]
            if name not in _NEVER_SHOWN:
                what += f", got {masked_values(mistake['input'])!r}"
        mistakes.append(f"{name} ({origins.get(name, 'default')}): {what}")
    return "; ".join(mistakes)
