"""What the templates must know of the commands: their options, and the columns of conditions."""

from __future__ import annotations

from typing import Any

import yaml

from ingest.cli.app import load_command
from workers.arrays.statistics import SUMS
from workers.rules.step import COLUMNS
from workers.store.sketch_names import COUNTS, LOSS, PERCENTILE

#: Commands that take `extraArgs`, and the value of the chart for each option that the chart itself sets.
SET_BY_CHART = {
    "watch": {
        "--config": "config",
        "--store": "config.store",
        "--scheduler": "scheduler.address",
        "--workers": "watcher.ownWorkers",
        "--metrics": "watcher.metrics",
    },
    "consolidate": {
        "--config": "config",
        "--follow": "nothing: the consolidator always follows",
        "--poll": "consolidator.pollSeconds",
        "--patience": "consolidator.patienceSeconds",
        "--metrics": "consolidator.metricsPort",
        "--scheduler": "consolidator.useScheduler",
    },
    "serve": {
        "--config": "config",
        "--listen": "page.port",
        "--open": "nothing: a container has no browser",
        "--base-path": "page.basePath",
        "--base-url": "config.page_url",
        "--token-file": "page.existingSecret",
        "--trust-header": "page.trustHeader",
        "--allow-anyone": "page.allowAnyone",
        "--watchers": "watcher.metrics",
        "--cache": "page.cacheSize",
        "--refresh": "page.refreshSeconds",
    },
    "gc": {"--config": "config", "--apply": "gc.enabled", "--plan": "the command itself, by hand"},
}
#: Options with which the command answers a question and ends, and those that belong to them.
_OF_PEOPLE = frozenset({"--help", "--explain", "--from", "--rank", "--step", "--check"})


def known() -> str:
    """Return `files/known.yml`: by command, whether each option takes a value; and names in conditions."""
    commands = {name: _options(load_command(name)) for name in SET_BY_CHART}
    words = {
        "options": commands,
        "setByChart": SET_BY_CHART,
        "columns": sorted({*COLUMNS, *SUMS, *COUNTS}),
        "columnsOfSketches": f"^({PERCENTILE.pattern}|{LOSS.pattern})$",
    }
    return "# Made by helm/generate.py.\n" + yaml.safe_dump(words)


def _options(command: Any) -> dict[str, bool]:
    return {
        word: not parameter.is_flag
        for parameter in command.params
        for word in (*parameter.opts, *parameter.secondary_opts)
        if word.startswith("--") and not _OF_PEOPLE & {*parameter.opts}
    }
