"""Options that several commands share: the same name means the same everywhere."""

from collections import defaultdict

from ingest.cli.app import COMMANDS, load_command

#: Flags that do something else in some command.
DIFFERENT = {
    "--apply": "`gc` deletes, `repair` writes",
    "--budget": "of bytes that `next` may ask for, and of the errors that `audit` finds in operators",
    "--finish": "`watch` takes dumps, `consolidate --follow` takes commits",
    "--from": "`watch --explain` asks one watcher, `doctor` checks any number of processes",
    "--graph": "`find` searches, `show` chooses one tensor",
    "--html": "a page with plots, with a comparison, or with what `audit` prints",
    "--include-partial": "`find` knows it with --consolidated only",
    "--keep-anomalous": "in the dump for `ingest` and `watch`, in the store for `gc`",
    "--keep-last": "in the dump for `ingest` and `watch`, in the store for `gc`",
    "--layout-map": "settles what `compare` leaves open; `export` writes whole tensors by it",
    "--limit": "each says what it limits",
    "--metrics": "`consolidate` knows it with --follow only",
    "--listen": "`mcp` speaks over standard input and output without it",
    "--out": "a page, or a configuration",
    "--placement": "of the tensor that `show` prints, and of all that `export` writes",
    "--poll": "`consolidate` knows it with --follow only",
    "--rank": "`show` takes one",
    "--severity": "`wait` knows it with --until incident only",
    "--stat": "of the error over the steps, which has a default of its own",
    "--step": "`show` takes one",
    "--unsharded": "`show` prints a whole tensor; `export` writes a file of them",
    "--where": "a cause in `origin`",
    "--workers": "`compare` uses threads without it",
}


def test_an_option_has_the_same_help_in_every_command() -> None:
    helps: dict[str, set[str]] = defaultdict(set)
    for listed in COMMANDS:
        loaded = load_command(listed.name)
        for command in getattr(loaded, "commands", {listed.name: loaded}).values():
            for parameter in command.params:
                for flag in parameter.opts:
                    helps[flag].add(str(parameter.help))
    several = {flag for flag, texts in helps.items() if len(texts) > 1 and flag.startswith("--")}
    assert several == DIFFERENT.keys()
