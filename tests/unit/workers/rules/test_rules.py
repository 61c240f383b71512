"""Rules over statistics: their files, their names, and what they find."""

import fnmatch
import math
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import ingest
from ingest.findings.backtest import backtest
from tests.cli import run_here
from tests.rule_sets import KEY, evaluated, numbers, only, rows, tables_of
from tests.stores import MadeDump, ingest_and_open, ingest_directly, tensor_name
from workers.arrays.dtypes import LIMITS
from workers.arrays.statistics import FIELDS
from workers.errors import UsageError
from workers.rules.names import compiled, fits, is_chosen, matching, near
from workers.rules.ready import rules_of
from workers.rules.schema import COMMON_FIELDS, MODELS, RULE, file_schema, load_rules, rules_like
from workers.rules.step import COLUMNS, evaluate
from workers.rules.values import Rule, RuleSet, Selector
from workers.store.consolidated.blocks import BLOCK_COLUMNS
from workers.store.tables import LABELS

# Evaluating the rules over one step: what is stored and counted, and that nothing stops a commit.


def test_a_limit_bounds_what_is_stored_and_not_what_is_counted() -> None:
    result = evaluated(tables_of(*[numbers(np.nan)] * 9), kind="not_finite", limit=4)
    assert [finding.row for finding in result.findings] == [0, 1, 2, 3]
    assert result.totals == {"mine": 9}


def test_a_rule_that_fails_is_named_and_the_others_are_evaluated() -> None:
    """Whatever a rule holds that nobody thought of: the step is committed."""
    broken = Rule("broken", "too_large", "info", Selector(), (("max_gt", 0.0),), where="nan_count == 'x' + 1")
    worse = Rule("worse", "no_such_kind", "info", Selector(), ())
    fine = only(kind="not_finite").rules
    result = evaluate(RuleSet((broken, worse, *fine), "d"), tables_of(numbers(np.nan, 1)), KEY)
    assert result.totals == {"mine": 1}
    assert set(result.failed) == {"broken", "worse"}


def test_selectors_choose_by_name_type_and_rank() -> None:
    made = tables_of(*[numbers(np.nan)] * 3)
    name = "MatMul.op1.output.0"
    assert rows(made, kind="not_finite", include="*op1*") == [1]
    assert rows(made, kind="not_finite", include=["re:^MatMul.op[02]"]) == [0, 2]
    assert rows(made, kind="not_finite", exclude=name) == [0, 2]
    assert rows(made, kind="not_finite", include=["*op1*", "*op2*"], exclude="re:2.output") == [1]
    assert rows(made, kind="not_finite", op_type="Conv*") == []
    assert rows(made, kind="not_finite", exclude_op_type="Mat*") == []
    assert rows(made, kind="not_finite", io="input") == []
    assert rows(made, kind="not_finite", graph="0", dtype="float32") == [0, 1, 2]
    assert rows(made, kind="not_finite", dtype=["float16", "b*"]) == []
    assert rows(made, kind="not_finite", rank="0-2,4") == []
    assert rows(made, kind="not_finite", rank=[3]) == [0, 1, 2]


def test_where_is_asked_beside_and_alone() -> None:
    made = tables_of(numbers(np.nan, 5), numbers(np.nan, 1), numbers(9))
    assert rows(made, kind="not_finite", where="max > 2") == [0]
    assert rows(made, kind="condition", where="max > 2") == [0, 2]
    assert rows(
        made, kind="condition", where="name == 'MatMul.op1.output.0' and rank == 3 and step == 7"
    ) == [1]
    assert rows(made, kind="condition", where="role == 'activation'") == [0, 1, 2]
    assert rows(made, kind="condition", where="role == 'gradient'") == []


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_rms_is_that_of_the_elements_and_no_less_than_the_mean_of_their_magnitude(
    values: list[float],
) -> None:
    """So `rms_lt` never fires where the definition by the mean of |x| would not."""
    array = np.array(values)
    rms = float(np.sqrt(np.mean(array**2)))
    (finding,) = evaluated(tables_of(array), kind="too_large", rms_gt=-1).findings
    assert finding.value == pytest.approx(rms, rel=1e-9, abs=1e-300)
    assert finding.value >= np.abs(array).mean() * (1 - 1e-9)


def test_not_finite_counts_what_it_is_asked_for() -> None:
    made = tables_of(
        numbers(1, 2), numbers(np.nan, 1), numbers(np.inf, -np.inf), numbers(np.nan, np.nan, -np.inf)
    )
    assert rows(made, kind="not_finite") == [1, 2, 3]
    assert rows(made, kind="not_finite", of=["nan"]) == [1, 3]
    assert rows(made, kind="not_finite", of=["neg_inf"]) == [2, 3]
    assert rows(made, kind="not_finite", count_gt=2) == [3]
    assert evaluated(made, kind="not_finite").findings[2].reason == "2 NaN, 1 -Inf of 3 elements"


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_headroom_is_the_share_of_the_largest_number_of_the_type(dtype: str) -> None:
    limit = LIMITS[dtype]
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    half, most = (np.array([1, -x], np.float64).astype(kind) for x in (limit / 2, limit))
    made = tables_of(half, most)
    assert rows(made, kind="headroom", share_gt=0.5) == [1]
    assert rows(made, kind="headroom", share_ge=0.5) == [0, 1]
    assert rows(made, kind="headroom", share_ge=1) == [1]


def test_too_large_and_too_small_compare_what_they_are_given() -> None:
    made = tables_of(numbers(-100, 1), numbers(3, 4), numbers(1e-9, -1e-9))
    assert rows(made, kind="too_large", abs_max_gt=50) == [0]
    assert rows(made, kind="too_large", max_gt=3.5) == [1]
    assert rows(made, kind="too_large", max_gt=3.5, rms_gt=50) == [0, 1]
    assert rows(made, kind="too_large", l2_norm_gt=4.99, mean_gt=1e9) == [0, 1]
    assert rows(made, kind="too_small", rms_lt=1e-7) == [2]
    assert rows(made, kind="too_small", mean_lt=-1) == [0]


def test_the_largest_magnitude_is_no_less_than_what_is_known_of_it() -> None:
    """A table of statistics may have the maximum alone."""
    made = tables_of(numbers(-100, 1), numbers(-1, 6e4, dtype="f2"), numbers(1e-9, -1e-9))
    made.statistics[:, FIELDS.index("min")] = np.nan
    assert rows(made, kind="too_large", abs_max_gt=50) == [1]
    assert rows(made, kind="headroom", share_gt=0.5) == [1]
    assert rows(made, kind="too_small", abs_max_lt=10) == []


def test_zeros_by_share_of_tensors_that_are_large_enough() -> None:
    made = tables_of(np.zeros(3), np.array([0, 0, 0, 1.0]), np.ones(4), np.zeros(100))
    assert rows(made, kind="zeros") == [0, 3]
    assert rows(made, kind="zeros", share_ge=0.75) == [0, 1, 3]
    assert rows(made, kind="zeros", elements_ge=16) == [3]


def test_range_on_either_side_and_by_spread() -> None:
    made = tables_of(numbers(-2, 0), numbers(0, 2), numbers(0.5, 0.5))
    assert rows(made, kind="range", min_ge=-1) == [0]
    assert rows(made, kind="range", max_le=1) == [1]
    assert rows(made, kind="range", min_ge=-1, max_le=1) == [0, 1]
    assert rows(made, kind="range", spread_lt=0.1) == [2]


def test_an_overflow_record_and_a_disagreement_are_found_by_their_rows() -> None:
    made = tables_of(numbers(1), numbers(2))
    made.labels[0, LABELS.index("kind")] = "overflow"
    made.labels[0, LABELS.index("record")] = '{"failed": [{"op_type": "Mul", "op_name": "x"}], "record": {}}'
    made.labels[1, LABELS.index("problem")] = "s.csv disagrees: max: 3 is reported, 2 computed"
    (record,) = evaluated(made, kind="overflow").findings
    assert record.reason == "the hardware recorded an overflow in Mul.x"
    assert math.isnan(record.value)
    assert rows(made, kind="disagreement") == [1]
    made.labels[0, LABELS.index("record")] = "no JSON"
    assert rows(made, kind="overflow") == [0]


def test_nothing_is_said_of_what_is_not_known() -> None:
    made = tables_of(numbers(np.nan))
    made.statistics[:] = np.nan
    for rule in (
        {"kind": "not_finite"},
        {"kind": "headroom", "share_ge": 0},
        {"kind": "too_small", "max_lt": 1e30},
        {"kind": "zeros", "share_ge": 0},
        {"kind": "range", "min_ge": 0},
    ):
        assert rows(made, **rule) == []


#: Half of the elements vanish in e4m3; the 50th percentile lies in (1, 2], and the largest is 512.
VALUES = np.array([2.0**-20] * 5 + [1.5] * 4 + [512], "<f4")


@pytest.fixture
def filled(made: MadeDump, store: Path) -> ingest.DumpStore:
    """A step with histograms, and one without."""
    made.add(VALUES, tensor_name(time=1), step=0)
    return ingest_and_open(made.root, store, sketches=True)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"kind": "cast", "format": "e4m3", "underflow_gt": 0.4}, 0.5),
        ({"kind": "cast", "format": "e4m3", "underflow_gt": 0.5}, None),
        ({"kind": "cast", "format": "e4m3", "overflow_gt": 0.05}, 0.1),
        ({"kind": "cast", "format": "e4m3", "scaling": "current", "overflow_gt": 0.0}, None),
        ({"kind": "cast", "format": "float16", "overflow_gt": 0.0}, None),
        ({"kind": "percentile", "percent": 60, "gt": 0.9}, 1.0),
        ({"kind": "percentile", "percent": 60, "gt": 1.2}, None),  # it is 1.5, and may be 1.1
        ({"kind": "percentile", "percent": 100, "gt": 511}, 512.0),
        ({"kind": "percentile", "percent": 20, "lt": 1e-5}, 2.0**-20),
    ],
)
def test_what_is_certain_is_found(
    filled: ingest.DumpStore, fields: dict[str, object], value: float | None
) -> None:
    (result,) = backtest(filled, only(**fields)).rules
    assert not result.failed
    assert [finding.value for finding in result.first] == ([] if value is None else [value])


def test_findings_are_made_at_the_commit_and_said_in_words(made: MadeDump, store: Path) -> None:
    made.add(VALUES, tensor_name(time=1), step=0)
    chosen = only(kind="cast", format="e4m3", underflow_gt=0.01)
    (summary,) = ingest_directly(made.root, store, rules=chosen, sketches=True)
    (finding,) = summary.first_findings
    assert finding.reason == "50.000% of its elements would underflow in float8_e4m3fn"


def test_a_step_without_histograms_fails_the_rule_and_no_other(made: MadeDump, store: Path) -> None:
    made.add(VALUES, tensor_name(time=1), step=0)
    chosen = only(kind="percentile", percent=50, gt=1)
    (summary,) = ingest_directly(made.root, store, rules=chosen)
    assert "1 tensor has no histogram" in summary.failed_rules["mine"]
    (result,) = backtest(ingest.open_store(store), chosen).rules
    assert "no histogram" in result.failed[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "cast", "format": "float9", "overflow_gt": 0},
        {"kind": "cast", "format": "nvfp4", "underflow_gt": 0},
        {"kind": "cast", "format": "e4m3"},
        {"kind": "percentile", "percent": 50},
        {"kind": "percentile", "percent": 101, "gt": 1},
    ],
)
def test_impossible_rules_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"format|blocks|needs at least one|100"):
        only(**fields)


# Files of rules: what they change, and that each mistake is named with its line.


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


# Patterns over names, and suggestions for names that do not exist.


NAMES = ["Conv2D.net_conv1.output.0", "Conv2D.net_conv2.output.0", "ReLU.net_relu.output.0"]


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        ((), (), NAMES),
        (("Conv2D*",), (), NAMES[:2]),
        (("Conv2D",), (), []),
        (("re:conv[12]",), ("*conv1*",), NAMES[1:2]),
        ((), ("re:^Conv",), NAMES[2:]),
        (("*relu*", "re:2.output"), (), NAMES[1:]),
    ],
)
def test_patterns_of_a_rule_choose_names(
    include: tuple[str, ...], exclude: tuple[str, ...], chosen: list[str]
) -> None:
    """A glob matches the whole name; a regular expression is searched."""
    assert [name for name in NAMES if is_chosen(include, exclude, name)] == chosen


def test_a_wrong_expression_is_refused() -> None:
    with pytest.raises(re.error):
        compiled(("re:(",))


@pytest.mark.parametrize("name", ["op[0]", "a*b", "what?"])
def test_a_name_with_wildcards_in_it_matches_itself(name: str) -> None:
    assert fits(name)(name)


def test_a_glob_gives_the_places_of_what_it_matches() -> None:
    assert matching("Conv2D*", NAMES) == [0, 1]


@pytest.mark.parametrize(
    ("what", "pattern", "hint"),
    [
        ("tensor", "*relu2*", "Near: ReLU.net_relu.output.0"),
        ("tensor", "xyzzy", "`dump-ingest find STORE` lists the names."),
        ("rule", "xyzzy", "`dump-ingest rules list` lists the names."),
    ],
)
def test_a_pattern_that_matches_nothing_is_answered_with_a_hint(what: str, pattern: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"no {what} is named like") as raised:
        matching(pattern, NAMES, what)
    assert raised.value.hint == hint


def test_a_part_of_a_name_is_near_it_in_any_case() -> None:
    assert near("CONV2", NAMES) == [NAMES[0], NAMES[1]]
    assert near("conv1", NAMES) == [NAMES[0]]


def test_at_most_five_names_are_near() -> None:
    assert len(near("*", [f"op{i}" for i in range(100)])) == 5
    assert len(near("op", [f"op{i}" for i in range(100)])) == 5


@given(st.text("ab*?[]!.", max_size=8), st.text("ab[].", max_size=8))
def test_a_glob_of_a_rule_is_a_glob(pattern: str, name: str) -> None:
    assert is_chosen((pattern,), (), name) == fnmatch.fnmatchcase(name, pattern)
    assert is_chosen((), (pattern,), name) != fnmatch.fnmatchcase(name, pattern)


# The models of rules: what fields become, and that every kind is part of the schema for editors.


def test_the_schema_of_a_file_describes_every_kind_and_field() -> None:
    definitions = file_schema()["$defs"]
    kinds = {definition["properties"]["kind"]["const"]: definition for definition in definitions.values()}
    assert kinds.keys() == MODELS.keys()
    for definition in kinds.values():
        common = {name: field for name, field in definition["properties"].items() if name in COMMON_FIELDS}
        assert {name for name, field in common.items() if "description" not in field} <= {"kind", "where"}


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        (3, ((3, 3),)),
        ("0-7", ((0, 7),)),
        ("0-2, 4", ((0, 2), (4, 4))),
        ([0, "2-3"], ((0, 0), (2, 3))),
        ([], ()),
    ],
)
def test_ranks_are_numbers_and_spans(text: object, spans: tuple[tuple[int, int], ...]) -> None:
    assert only(kind="zeros", rank=text).rules[0].selector.rank == spans


@pytest.mark.parametrize("text", ["a", "3-1", True, "-1", [[1]], "99999999", "1 - 2", "1.0", ""])
def test_what_is_not_a_span_of_ranks_is_refused(text: object) -> None:
    with pytest.raises(ValidationError, match="must be ranks such as"):
        RULE.validate_python({"name": "mine", "kind": "zeros", "rank": text})


def test_numbers_of_a_rule_are_floats_for_those_who_evaluate_it() -> None:
    rule = only(kind="zeros", elements_ge=16).rules[0]
    assert dict(rule.parameters) == {"share_ge": 1.0, "elements_ge": 16.0}
    assert all(isinstance(value, float) for _, value in rule.parameters)


@pytest.mark.parametrize(("kind", "columns"), [("condition", COLUMNS), ("unchanged", BLOCK_COLUMNS)])
def test_every_column_can_be_compared_with_what_it_holds(kind: str, columns: frozenset[str]) -> None:
    texts = set()
    for column in columns:
        try:
            only(kind=kind, where=f"{column} > 0")
        except ValidationError:
            only(kind=kind, where=f"{column} == 'x' and {column} in ['y']")
            texts.add(column)
    assert {"name", "op_type", "role", "graph"} <= texts
    assert not texts & {"nan_count", "slot", "rank", "step", "max"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan_cout > 0", "names 'nan_cout', which is not a column. Did you mean nan_count"),
        ("max", "'max' is a value, not a condition"),
        ("io > 3", "'io > 3' takes text for a number"),
        ("op_type == Sqrt", "Quote it if it is text: op_type == 'Sqrt'."),
    ],
)
def test_a_mistake_in_a_condition_is_told_at_once(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        only(kind="condition", where=text)
