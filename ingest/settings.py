"""Settings: flags, then `DUMP_INGEST_*` variables, then a YAML file, then defaults.

No setting holds a credential: those come from the environment chain of the storage library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import ByteSize, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from ingest.disk.pressure import parse_threshold
from workers.errors import UsageError

ENV_PREFIX = "DUMP_INGEST_"
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
#: A credential, hence no setting: it is read where it is used.
TOKEN_VARIABLE = f"{ENV_PREFIX}WEBHOOK_TOKEN"
_MIB = 1024 * 1024


class Settings(BaseSettings):
    """Everything that can be set. Every field has a description, shown by `dump-ingest config schema`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    store: str | None = None
    """Where the store is: a directory or any fsspec URL, such as s3://bucket/run.zarr."""
    store_options: dict[str, Any] = Field(default_factory=dict)
    """Options for fsspec. No credentials: those belong into the environment (AWS_ACCESS_KEY_ID, ...)."""
    scheduler: str | None = None
    """Address of a Dask scheduler (tcp://host:8786), or its scheduler file. None: workers of its own."""
    scheduler_timeout_s: float = Field(default=30.0, gt=0)
    """How long to wait for the scheduler, and for its first worker."""
    # Not JSON in the environment either: each host has its own, and writes it as the flag has it.
    worker_resources: Annotated[dict[str, float], NoDecode] = Field(default_factory=dict)
    """Dask resources that workers must offer (host-n17=1): pins tasks to the host that has the files."""
    host: str | None = None
    """What this host is called in the store. None: its host name; containers have a new one at each start."""
    workers: int | None = Field(default=None, ge=1)
    """Worker processes where there is no scheduler. None: one for each processor, at most eight."""
    poll_s: float = Field(default=1.0, gt=0)
    """How often the dump is listed. Polling is the truth; file events only wake it early."""
    quiet_s: float = Field(default=10.0, ge=0)
    """A step with no later step after it is complete when nothing has changed for this long."""
    settle_s: float = Field(default=1.0, ge=0)
    """The same for a step after which a later one has begun."""
    order: Literal["oldest", "newest"] = "oldest"
    """Which steps of a backlog come first."""
    under_pressure: Literal["keep", "newest", "statistics"] = "keep"
    """While the dump's disk is nearly full: go on, take new steps first, or leave out tensors for now."""
    pressure_free: str = "10%"
    """Below how much free space the dump's disk is nearly full: a share (10%), or bytes (200GB)."""
    # Not JSON in the environment either: each host has a map of its own, and writes it as the flag has it.
    rank_map: Annotated[dict[int, int], NoDecode] = Field(default_factory=dict)
    """Ranks of device ids (0=8,1=9), for dumps whose paths name only the device."""
    keep_device_layout: bool = False
    """Whether tensors stay in the layout of the accelerator. Part of every fingerprint."""
    replace: bool = False
    """Whether steps that came from another dump directory may be replaced."""
    after_commit: Literal["keep", "delete"] = "keep"
    """What becomes of dump files that are committed; they are read back first. See docs/retention.md."""
    keep_last: int = Field(default=1, ge=1)
    """With `after_commit` delete: how many of the newest steps of each rank stay in the dump."""
    keep_anomalous: bool = False
    """With `after_commit` delete: whether steps with NaN, Inf, overflows or findings stay in the dump."""
    consolidate: bool = True
    """Whether `ingest` with workers of its own brings the consolidated view up to date at its end."""
    inflight_size: ByteSize = Field(default=ByteSize(1024 * _MIB), gt=0)
    """Source bytes of all tasks under way."""
    chunk_size: ByteSize = Field(default=ByteSize(_MIB), ge=4096)
    """Inner chunks of the store: what a small read costs. Part of every fingerprint."""
    shard_size: ByteSize = Field(default=ByteSize(128 * _MIB), ge=4096)
    """Shards before compression: one object, and what a task holds in memory. Part of every fingerprint."""
    job_size: ByteSize = Field(default=ByteSize(128 * _MIB), ge=4096)
    """What one task reads, about. Part of every fingerprint."""
    rules: str | None = None
    """YAML file that adds to the built-in anomaly rules, changes them, or switches them off."""
    webhook: str | None = None
    """URL to which findings are posted. A token is taken from DUMP_INGEST_WEBHOOK_TOKEN, never from here."""
    webhook_severity: Literal["info", "warning", "critical"] = "warning"
    """The mildest findings that are posted."""
    drain_s: float = Field(default=30.0, ge=0)
    """After SIGTERM: how long to finish what is under way."""
    metrics: str | None = "127.0.0.1:9108"
    """Where `watch` serves /metrics: host:port. None or "": nowhere."""
    consolidator_metrics: str | None = "127.0.0.1:9109"
    """Where `consolidate --follow` serves /metrics: host:port. None or "": nowhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages that are logged."""
    log_format: Literal["auto", "console", "json"] = "auto"
    """How messages look; auto: console on a terminal, JSON otherwise."""
    dask: dict[str, Any] = Field(default_factory=dict)
    """Passed to dask.config.set, for instance {"distributed.comm.timeouts.connect": "60s"}."""

    @field_validator("store", "scheduler", "host", "rules", "webhook")
    @classmethod
    def _not_empty(cls, value: str | None) -> str | None:
        return value or None  # `--store "$UNSET"` names none

    @field_validator("pressure_free", mode="before")
    @classmethod
    def _share_or_bytes(cls, value: Any) -> str:
        text = str(value)  # in YAML, a number of bytes is no text
        parse_threshold(text)
        return text

    @field_validator("rank_map", mode="before")
    @classmethod
    def _device_and_rank(cls, value: Any) -> Any:
        if isinstance(value, str):
            pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
            if not all(d.strip().isdecimal() and r.strip().isdecimal() for d, _, r in pairs):
                message = "must be device=rank pairs, such as 0=8,1=9"
                raise ValueError(message)
            value = {int(device): int(rank) for device, _, rank in pairs}
            if len(value) < len(pairs):
                message = "gives two ranks to one device"
                raise ValueError(message)
        return value

    @field_validator("worker_resources", mode="before")
    @classmethod
    def _name_and_amount(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        try:
            return {name.strip(): float(amount) for name, _, amount in pairs if name.strip() or amount}
        except ValueError:
            message = "must be name=amount pairs, such as host-n17=1"
            raise ValueError(message) from None

    @field_validator("worker_resources")
    @classmethod
    def _positive_amounts(cls, value: dict[str, float]) -> dict[str, float]:
        if any(not name or not 0 < amount < float("inf") for name, amount in value.items()):
            message = "must be names with amounts above 0, such as host-n17=1"
            raise ValueError(message)
        return value

    @field_validator("rank_map")
    @classmethod
    def _one_device_each(cls, value: dict[int, int]) -> dict[int, int]:
        if len(set(value.values())) < len(value):
            message = "gives one rank to two devices"
            raise ValueError(message)
        if any(number < 0 for pair in value.items() for number in pair):
            message = "must be numbers from 0"
            raise ValueError(message)
        return value

    @field_validator("metrics", "consolidator_metrics")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if not value:
            return None
        host, colon, port = value.rpartition(":")
        if not colon or not port.isdecimal() or not host:
            message = "must be host:port, such as 0.0.0.0:9108"
            raise ValueError(message)
        return value

    @field_validator("webhook")
    @classmethod
    def _no_credentials(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            message = "must be a URL such as https://host/path"
            raise ValueError(message)
        if parts.username or parts.password:
            message = "must hold no credentials; a token comes from the environment, see docs/rules.md"
            raise ValueError(message)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what `load` has joined: it must know where each value comes from."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and where each of them comes from."""

    settings: Settings
    origins: Mapping[str, str]
    unknown_variables: tuple[str, ...]
    """Variables with our prefix that name no setting."""


def load(config: Path | None = None, **flags: Any) -> LoadedSettings:
    """Join flags (None: not given), environment, YAML file and defaults.

    Raises:
        UsageError: the file cannot be read, a name is unknown, or a value is wrong.
    """
    if config is None and (named := os.environ.get(CONFIG_VARIABLE)):
        config = Path(named)
    from_file = {} if config is None else _read_yaml(config)
    try:
        from_environment = EnvSettingsSource(Settings)()
    except SettingsError as exc:
        raise UsageError(f"{exc}: it must be JSON", hint="See `dump-ingest config schema`.") from exc
    given = {name: value for name, value in flags.items() if value is not None}
    joined = {**from_file, **from_environment, **given}
    origins = {
        **dict.fromkeys(Settings.model_fields, "default"),
        **dict.fromkeys(from_file, str(config)),
        **{name: f"{ENV_PREFIX}{name.upper()}" for name in from_environment},
        **{name: f"--{name.removesuffix('_s').replace('_', '-')}" for name in given},
    }
    try:
        settings = Settings(**joined)
    except ValidationError as exc:
        raise UsageError(_explain(exc, origins), hint="See `dump-ingest config schema`.") from exc
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields} | {
        CONFIG_VARIABLE,
        TOKEN_VARIABLE,
    }
    unknown = sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known)
    return LoadedSettings(settings, origins, tuple(unknown))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", hint="Name the file with --config.") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} is no YAML: {' '.join(str(exc).split())}") from exc
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"{path} must hold `name: value` lines")
    return {str(name): value for name, value in found.items()}


def _shown(value: Any) -> str:
    """Return a wrong value as a message may show it: without what may be a credential in a URL."""
    return "a URL" if isinstance(value, str) and "://" in value and "@" in value else repr(value)


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    lines = []
    for one in error.errors():
        name = str(one["loc"][0]) if one["loc"] else "settings"
        what = (
            "is no setting"
            if one["type"] == "extra_forbidden"
            else f"{one['msg'].lower()}, got {_shown(one['input'])}"
        )
        lines.append(f"{name} ({origins.get(name, 'default')}): {what}")
    return "; ".join(lines)
