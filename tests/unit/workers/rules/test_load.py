"""Files of rules: what they change, and that each mistake is named with its line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_process import run_here
from workers.errors import UsageError
from workers.rules.ready import rules_of
from workers.rules.schema import load_rules, rules_like


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rules.yml"


def wrong(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_rules(file)
    assert raised.value.hint
    return raised.value.message.removeprefix(str(file))


def test_a_built_in_rule_is_changed_in_what_the_file_says(file: Path) -> None:
    file.write_text("rules:\n  - name: nan\n    exclude: ['*mask*']\n    severity: info\n")
    loaded = {rule.name: rule for rule in load_rules(file).rules}
    assert (loaded["nan"].kind, loaded["nan"].severity, loaded["nan"].exclude) == (
        "not_finite",
        "info",
        ("*mask*",),
    )
    assert loaded["inf"].severity == "critical"


def test_rules_are_switched_off_one_by_one_or_all(file: Path) -> None:
    file.write_text("rules:\n  - {name: nan, enabled: false}\n")
    assert "nan" not in {rule.name for rule in load_rules(file).enabled.rules}
    file.write_text("builtin: false\n")
    assert load_rules(file).enabled.rules == ()


@pytest.mark.parametrize("text", ["", "rules:\n", "rules: []\n", "# nothing\n"])
def test_a_file_without_rules_changes_nothing(file: Path, text: str) -> None:
    file.write_text(text)
    assert load_rules(file).enabled == load_rules().enabled


def test_the_digest_is_of_what_decides_and_not_of_words_or_order(file: Path) -> None:
    first, second = "{name: a, kind: zeros}", "{name: b, kind: overflow}"
    digests = []
    reworded = "{name: b, kind: overflow, description: other words}"
    for rules in ([first, second], [second, first], [first, reworded]):
        file.write_text("rules:\n" + "".join(f"  - {rule}\n" for rule in rules))
        digests.append(load_rules(file).enabled.digest)
    assert len(set(digests)) == 1
    file.write_text("rules:\n  - {name: a, kind: zeros, share_ge: 0.5}\n  - {name: b, kind: overflow}\n")
    assert load_rules(file).enabled.digest not in digests


#: How most files of the tests begin.
A = "rules:\n  - name: a\n    kind: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rules:\n  - name: nan\n    severtiy: info\n",
            ":3: severtiy is not a field of a rule of kind not_finite; did you mean severity?",
        ),
        (A + "too_large\n    max_gt: lots\n", ":4: max_gt: input should be a valid number"),
        (A + "too_large\n    max_gt: .nan\n", ":4: max_gt: input should be a finite number"),
        (A + "zeros\n    share_ge: 2\n", ":4: share_ge: input should be less than or equal to 1"),
        (A + "not_finite\n    include: ['re:(']\n", ":4: include: 're:(' is not a valid regular expression"),
        (A + "condition\n    where: __import__('os')\n", ':4: where: "__import__'),
        (A + "zerro\n", ":3: 'zerro' is not a kind of rule; did you mean zeros?"),
        ("rules:\n\n  - name: a\n", ":3: rule a has no kind"),
        ("rules:\n  - name: nan\n    kind: zeros\n", ":3: rule nan is built in, and its kind is not_finite"),
        (
            "rules:\n  - {name: a, kind: overflow}\n  - {name: a, kind: overflow}\n",
            ":3: rule a is there already, at ",
        ),
        (A + "zeros\n    kind: zeros\n", ":4: kind occurs twice"),
        ("rules:\n  - name: A b\n    kind: zeros\n", ":2: name: string should match pattern"),
        (A + "outlier\n    ratio_gt: 2\n    dtype: float16\n", ":5: dtype is not a field"),
        (
            A + "outlier\n    ratio_gt: 2\n    where: dtype == 'x'\n",
            ":5: where: \"dtype == 'x'\" names 'dtype'",
        ),
        (A + "condition\n    where: max\n", ":4: where: 'max' is a value, not a condition"),
        (A + "condition\n    where: max > 'a'\n", ":4: where: \"max > 'a'\" cannot be evaluated"),
        (A + "outlier\n    ratio_gt: 2\n    history: 3\n    least: 5\n", ":2: least is 5, but"),
        (A + "too_large\n", ":2: needs at least one of"),
        (A + "zeros\n    rank: 8-1\n", ":4: rank: must be ranks"),
        (A + "change\n", ":2: the rule has no ratio_gt"),
        ("rule: []\n", ":1: rule is not known here; did you mean rules?"),
        ("rules: {a: 1}\n", ":1: rules must be a list"),
        ("rules:\n  - just text\n", ":2: a rule must be"),
        ("- a\n", ":1: a file of rules must be"),
        ("builtin: maybe\n", ":1: builtin must be true or false"),
        ("rules:\n  - name: a\n   kind: b\n", ":3: not valid YAML"),
        ("a: &x [1]\nrules: *x\n", ":2: aliases are not allowed"),
        ("rules:\n  - !!python/object/apply:os.system [ls]\n", ":2: could not determine"),
        (A + "zeros\n    limit: !!python/name:os.system\n", ":4: could not determine"),
    ],
)
def test_a_mistake_is_named_with_its_line(file: Path, text: str, message: str) -> None:
    assert wrong(file, text).startswith(message)


def test_what_is_not_a_file_of_rules_is_refused(tmp_path: Path) -> None:
    for path, content in ((tmp_path / "b", b"\xff\xfe"), (tmp_path / "l", b"#" * (1 << 20) + b"##")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="rules: "):
            load_rules(path)
    with pytest.raises(UsageError, match="No such file"):
        load_rules(tmp_path / "none")


def test_a_name_that_means_no_rule_is_answered_with_those_that_are_near() -> None:
    assert rules_like(["*_not_finite"], ["nan", "loss_not_finite"]) == {"loss_not_finite"}
    with pytest.raises(UsageError, match="no rule is named like 'nam'"):
        rules_like(["nam"], ["nan", "inf"])


def test_a_service_with_a_wrong_rule_does_not_start(file: Path, tmp_path: Path) -> None:
    file.write_text("rules:\n  - name: nan\n    severity: worst\n")
    env = {"DUMP_INGEST_RULES": str(file)}
    done = run_here("watch", tmp_path, "--store", tmp_path / "s.zarr", env=env, code=2)
    assert f"{file}:3: severity: input should be 'info', 'warning' or 'critical'" in done.stderr.replace(
        "\n", ""
    )
    file.write_text("rules:\n  - name: nan\n    severity: info\n")
    shown = run_here("rules", "show", "nan", env=env).stdout
    before = load_rules(file)
    file.write_text(shown)
    assert load_rules(file).enabled == before.enabled


ROOT = Path(__file__).parents[4]


def test_the_example_of_the_page_is_a_file_of_rules(file: Path) -> None:
    (example,) = re.findall(
        r"^```yml\n(.*?)^```$", (ROOT / "docs/rules.md").read_text(), re.MULTILINE | re.DOTALL
    )
    file.write_text(example)
    names = {rule.name for rule in load_rules(file).enabled.rules}
    assert {"activations_too_wide", "loss_jumps", "inf"} <= names
    assert "headroom_float8" not in names


def test_every_built_in_rule_says_where_it_comes_from() -> None:
    assert all(rule.source and rule.description for rule in load_rules().rules)


def test_a_file_of_rules_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text("rules:\n- {name: all_zero, enabled: false}\n")
    names = [rule.name for rule in rules_of(path).rules]
    assert names == [rule.name for rule in rules_of(None).rules if rule.name != "all_zero"]
    path.write_text("rules:\n- {name: all_zero, share: 2}\n")
    with pytest.raises(UsageError, match="share is not a field"):
        rules_of(path)


def test_without_a_file_neither_pydantic_nor_yaml_is_loaded() -> None:
    code = (
        "import sys\n"
        "from workers.rules.ready import rules_of\n"
        "assert rules_of(None).rules\n"
        "print([name for name in ('pydantic', 'yaml') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"
