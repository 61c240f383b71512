"""Check a configuration of any dump system: its system, what it asks for, what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from ingest.dump_configs.checking.acl import check_acl
from ingest.dump_configs.checking.mindspore import check_mindspore
from ingest.dump_configs.checking.msprobe import check_msprobe
from ingest.dump_configs.checking.options import check_tensorflow, check_torchair, options_of
from ingest.dump_configs.checking.pytorch import (
    check_sglang,
    check_transformer_engine,
    variables_of,
)
from ingest.dump_configs.model import AskedDump, ConfigFinding, Severity, version_numbers
from ingest.dump_configs.reading import (
    read_acl,
    read_mindspore,
    read_msprobe,
    read_options,
)
from workers.errors import UsageError

DEVICES = ("CPU", "GPU", "Ascend")
_MAX_NBYTES = 4 * 1024 * 1024
_MSPROBE_KEYS = {"task", "dump_path", "level"}


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """A configuration that was checked."""

    name: str
    """The path of its file."""
    system: str
    """The system that it is for, as `dump-ingest next --system` names it."""
    asked: AskedDump | None
    """What it asks for; None if nothing here can tell."""
    findings: tuple[ConfigFinding, ...]

    @property
    def refused(self) -> tuple[ConfigFinding, ...]:
        """What ends the job, or makes it dump nothing."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.REFUSED)

    @property
    def warnings(self) -> tuple[ConfigFinding, ...]:
        """What is ignored, or is not what it seems."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values."""
        asked = self.asked
        return {
            "name": self.name,
            "system": self.system,
            "ok": not self.refused,
            "findings": [asdict(finding) for finding in self.findings],
            "asked": None
            if asked is None
            else {
                "steps": None if asked.steps is None else sorted(asked.steps),
                "operators": None
                if asked.operators is None
                else [pattern.text for pattern in asked.operators],
                "devices": None if asked.devices is None else sorted(asked.devices),
                "io": asked.io.value,
                "tensors": asked.tensors,
                "statistics": asked.statistics,
                "categories": list(asked.categories),
                "sample": asked.sample,
                "directory": asked.directory,
                "only": asked.only,
            },
        }


def check_dump_config(path: str | PathLike[str], *, version: str = "", device: str = "") -> CheckedConfig:
    """Check the configuration of a dump before the job runs.

    Known are `data_dump.json` of MindSpore, `config.json` of msProbe, the JSON of ACL, lines of Python for
    TorchAir and TensorFlow on Ascend, variables of SGLang's dumper, and the debug YAML of TransformerEngine.

    Args:
        path: the file.
        version: the version of MindSpore, such as `2.10.0`: some rules depend on it.
        device: where the job runs: `CPU`, `GPU` or `Ascend`; some rules of MindSpore depend on it.

    Raises:
        UsageError: the file cannot be read, or is not a configuration of these systems.
    """
    if device and device not in DEVICES:
        raise UsageError(f"no device {device!r}", hint=f"Devices: {', '.join(DEVICES)}.")
    file = Path(path)
    try:
        data = file.read_bytes()[: _MAX_NBYTES + 1]
        text = data.decode("utf-8-sig")
    except OSError as exc:
        raise UsageError(f"{file}: cannot be read ({exc.strerror})", hint="Name the file.") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{file} is not text", hint="Name the configuration, not the dump.") from exc
    if len(data) > _MAX_NBYTES:
        raise UsageError(f"{file} is too large for a configuration", hint="Name the configuration.")
    return check_text(text, str(file), version=version, device=device)


def check_text(text: str, name: str, *, version: str = "", device: str = "") -> CheckedConfig:
    """Check a configuration that has been read; see `check_dump_config`."""
    if text.lstrip().startswith(("{", "[")):
        return _check_json(text, name, version, device)
    if (options := options_of(text)) is not None:
        system, values = options
        if system == "torchair":
            asked = read_options(values, usual_mode="all")
            return CheckedConfig(name, system, asked, tuple(check_torchair(values)))
        asked = read_options(values, usual_mode="output")
        return CheckedConfig(name, system, asked, tuple(check_tensorflow(values)))
    variables = variables_of(text)
    if any("DUMPER_" in variable for variable in variables):
        asked = AskedDump(directory=variables.get("DUMPER_DIR") or "/tmp/dumper")  # noqa: S108  (SGLang's default)
        return CheckedConfig(name, "sglang", asked, tuple(check_sglang(variables)))
    content = _yaml(text)
    if any(isinstance(entry, dict) and "transformer_engine" in entry for entry in content.values()):
        return CheckedConfig(name, "te", None, tuple(check_transformer_engine(content)))
    raise _unknown(name)


def _check_json(text: str, name: str, version: str, device: str) -> CheckedConfig:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(
            f"{name} is not JSON: {exc}",
            hint="Look for a comma too many or too few: every system refuses it.",
        ) from exc
    if not isinstance(content, dict):
        raise _unknown(name)
    if {"common_dump_settings", "e2e_dump_settings"} & content.keys():
        findings = check_mindspore(content, version_numbers(version), device)
        return CheckedConfig(name, "mindspore", read_mindspore(content), tuple(findings))
    if isinstance(content.get("dump"), dict) or list(content) == ["dump"]:
        return CheckedConfig(name, "acl", read_acl(content), tuple(check_acl(content)))
    if _MSPROBE_KEYS & content.keys():
        return CheckedConfig(name, "msprobe", read_msprobe(content), tuple(check_msprobe(content)))
    raise _unknown(name)


def _yaml(text: str) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"{name} is not the configuration of a dump system that is known here",
        hint="Known are data_dump.json (it must have common_dump_settings), msProbe's config.json, ACL's "
        "JSON, lines for TorchAir and TensorFlow, DUMPER_ variables and TransformerEngine's YAML.",
    )


def worst_first(findings: Iterable[ConfigFinding]) -> list[ConfigFinding]:
    """Return findings that are refused before warnings, otherwise in their order."""
    return sorted(findings, key=lambda finding: finding.severity is Severity.WARNING)
