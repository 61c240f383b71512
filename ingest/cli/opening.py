"""The settings of a command, and the store that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ingest
from ingest.cli.printing import say
from ingest.environment import ENV_PREFIX, sets_anything
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.settings import LoadedSettings, Settings


def load_settings(config: Path | None, **flags: Any) -> LoadedSettings:
    """Return the settings in effect: flags (None: not given), environment, file and defaults.

    Raises:
        UsageError: the file cannot be read, or a setting is wrong.
    """
    from ingest.settings import load  # deferred: pydantic takes 0.1 s to import, and --help needs none of it

    return load(config, **flags)


def load_settings_with_store(config: Path | None, **flags: Any) -> LoadedSettings:
    """Return the settings in effect for a command that writes; warn of variables that set nothing.

    Raises:
        UsageError: a setting is wrong, or none names a store.
    """
    loaded = load_settings(config, **flags)
    warn_of_unknown_variables(loaded)
    if loaded.settings.store is None:
        raise UsageError(
            "no store is named",
            hint="Name it with --store, DUMP_INGEST_STORE, or `store` in the settings file.",
        )
    return loaded


def warn_of_unknown_variables(loaded: LoadedSettings) -> None:
    """Print a warning for each variable with our prefix that sets nothing."""
    from ingest.settings import meant_setting  # deferred: see `load_settings`

    for name in loaded.unknown_variables:
        meant = meant_setting(name.removeprefix(ENV_PREFIX).lower()) or "; see `dump-ingest config schema`"
        say(f"{name} is not a setting{meant}", label="warning")


def open_store(store: str | None, config: Path | None, *, mesh: str | None = None) -> ingest.DumpStore:
    """Open the store that the command line names, or else the settings.

    Raises:
        UsageError: neither names a store, or the place holds none.
        StoreError: the store cannot be reached.
    """
    opened = _opened(store, config, mesh)
    if opened.mesh is not None and opened.mesh.size > (ranks := len(opened.listed_ranks)):
        # Only some ranks were dumped; or a size is wrong, and with it the place of every rank.
        say(f"the mesh {opened.mesh} has {opened.mesh.size} ranks, and the store has {ranks}", label="note")
    return opened


def _opened(store: str | None, config: Path | None, mesh: str | None) -> ingest.DumpStore:
    if store and _has_defaults_alone(config):
        return ingest.open_store(store, mesh=mesh or "")
    settings, url = settings_and_store(store, config, mesh=mesh)
    return ingest.open_store(url, mesh=settings.mesh, **settings.store_arguments)


def settings_and_store(store: str | None, config: Path | None, **flags: Any) -> tuple[Settings, str]:
    """Return the settings in effect for a command that reads, and the URL of the store that is named.

    Raises:
        UsageError: a setting is wrong, or none names a store.
    """
    settings = load_settings(config, store=store, **flags).settings
    if settings.store is None:
        raise UsageError(
            "no store is named",
            hint="Name it as STORE, with DUMP_INGEST_STORE, or as `store` in the settings file.",
        )
    return settings, settings.store


def page_url(config: Path | None) -> str | None:
    """Return by what URL people reach the page; None if the settings do not say.

    Raises:
        UsageError: the file cannot be read, or a setting is wrong.
    """
    return None if _has_defaults_alone(config) else load_settings(config).settings.page_url


def _has_defaults_alone(config: Path | None) -> bool:
    """Return whether neither a file nor a variable sets anything: then nobody waits 0.1 s for pydantic."""
    return config is None and not sets_anything()


def store_and(
    store: str | None, argument: str | None, config: Path | None, *, placeholder: str
) -> tuple[str | None, str]:
    """Tell STORE and the argument behind it apart: STORE may be left out if a setting names it.

    Args:
        store: the first argument.
        argument: the second one.
        config: the file of settings.
        placeholder: what the help calls the second argument.

    Returns:
        The store, or None for that of the settings; and the argument.

    Raises:
        UsageError: the argument is missing.
    """
    store, argument = store_and_maybe(store, argument, config)
    if argument is None:
        raise UsageError(
            f"{placeholder} is missing",
            hint=f"Arguments: STORE {placeholder}. You may omit STORE if DUMP_INGEST_STORE names it.",
        )
    return store, argument


def store_and_maybe(
    store: str | None, argument: str | None, config: Path | None
) -> tuple[str | None, str | None]:
    """Tell STORE and an argument behind it apart if either may be left out.

    A single argument is the store, unless a setting names that: then it is the argument.
    """
    if argument is not None or store is None or _has_defaults_alone(config):
        return store, argument
    if load_settings(config).settings.store is None:
        return store, argument
    return None, store


def refuse_idle_flags(settings: Settings, **flags: object) -> None:
    """Refuse flags that do nothing because dumps are kept: the caller expects an effect.

    Raises:
        UsageError: a flag about deletion is given, and `after_commit` is not `delete`.
    """
    given = [name for name in ("keep_last", "keep_anomalous", "dry_run") if flags.get(name)]
    if given and settings.after_commit != "delete":
        raise UsageError(f"--{given[0].replace('_', '-')} does nothing without --after-commit delete")
