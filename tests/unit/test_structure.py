"""Measures of the structure, on small trees whose figures are known."""

import subprocess
from pathlib import Path

import pytest

from tests.structure import classes, functions, layout, report, words
from tests.structure.graph import circles, floors, import_graph, room_graph, room_of
from tests.structure.measures import FIGURES, measure
from tests.structure.revisions import sources_of
from tests.structure.statements import Place
from tests.structure.tree import Tree


def plant(root: Path, **texts: str) -> Path:
    """Write modules, named with `__` for each dot, and an `__init__` for each package that has none."""
    for name, text in texts.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for package in path.parents:
            if package == root:
                break
            (package / "__init__.py").touch()
    return root


def test_circle_through_an_import_inside_a_function_is_found(tmp_path: Path) -> None:
    """A deferred import runs without trouble, and still ties two modules to each other."""
    plant(
        tmp_path,
        ingest__plan="import ingest.watch",
        ingest__watch="def look():\n    from ingest.plan import plan",
    )
    assert circles(import_graph(tmp_path)) == [{"ingest.plan", "ingest.watch"}]
    assert circles(import_graph(tmp_path, at_import=True)) == []


@pytest.mark.parametrize("condition", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_circle_through_an_import_for_types_is_found(tmp_path: Path, condition: str) -> None:
    plant(
        tmp_path,
        ingest__plan="from ingest.watch import View",
        ingest__watch=f"import typing\nif {condition}:\n    from ingest.plan import Plan",
    )
    assert circles(import_graph(tmp_path)) == [{"ingest.plan", "ingest.watch"}]
    assert circles(import_graph(tmp_path, at_import=True)) == []


def test_package_that_re_exports_its_modules_is_in_no_circle(tmp_path: Path) -> None:
    """Importing a module from its package is an edge to the module alone."""
    plant(tmp_path, ingest__gc__plan="", ingest__gc__run="from ingest.gc import plan\nfrom . import plan")
    (tmp_path / "ingest/gc/__init__.py").write_text("from ingest.gc.run import run\nfrom .plan import Plan")
    graph = import_graph(tmp_path)
    assert graph["ingest.gc.run"] == {"ingest.gc.plan"}
    assert graph["ingest.gc"] == {"ingest.gc.plan", "ingest.gc.run"}
    assert circles(graph) == []


def test_module_that_imports_what_its_package_re_exports_is_in_a_circle(tmp_path: Path) -> None:
    plant(tmp_path, ingest__gc__plan="class Plan: ...", ingest__gc__run="from ingest.gc import Plan")
    (tmp_path / "ingest/gc/__init__.py").write_text(
        "from ingest.gc.plan import Plan\nfrom ingest.gc.run import run"
    )
    assert circles(import_graph(tmp_path)) == [{"ingest.gc", "ingest.gc.run"}]


def test_graph_is_that_of_the_tree_and_not_of_what_is_installed(tmp_path: Path) -> None:
    plant(tmp_path, ingest__plan="import json, workers.model", workers__model="import numpy")
    assert import_graph(tmp_path) == {
        "ingest": set(),
        "ingest.plan": {"workers.model"},
        "workers": set(),
        "workers.model": set(),
    }


@pytest.mark.parametrize(
    ("module", "room"),
    [
        ("ingest", None),
        ("ingest.watch", "ingest.watch"),
        ("ingest.gc", "ingest.gc"),
        ("ingest.reader.view.store", "ingest.reader"),
    ],
)
def test_room_is_the_folder_below_the_package_or_the_loose_module(module: str, room: str | None) -> None:
    assert room_of(module) == room


def test_rooms_import_what_their_modules_import_from_other_rooms() -> None:
    graph = {
        "ingest": {"ingest.gc.plan"},
        "ingest.gc.plan": {"ingest.gc.run", "ingest.watch", "ingest"},
        "ingest.gc.run": {"ingest.watch"},
        "ingest.watch": set[str](),
    }
    assert room_graph(graph) == {"ingest.gc": {"ingest.watch"}, "ingest.watch": set()}


def test_circles_come_by_size_and_a_node_by_itself_is_none() -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"f", "a"}}
    assert circles(graph) == [{"c", "d", "e"}, {"a", "b"}]


def test_circle_is_one_floor() -> None:
    assert floors({"top": {"a", "low"}, "a": {"b"}, "b": {"a", "low"}, "low": set()}) == 3
    assert floors({}) == 0


def test_imports_are_counted_where_they_stand(tmp_path: Path) -> None:
    text = (
        "import ingest.watch\n"
        "if TYPE_CHECKING:\n"
        "    import ingest.plan\n"
        "    from pathlib import Path\n"
        "else:\n"
        "    import json\n"
        "class Runner:\n"
        "    async def run(self):\n"
        "        if self:\n"
        "            from . import plan, watch\n"
        "            import numpy, zarr\n"
    )
    tree = Tree(plant(tmp_path, ingest__run=text))
    counted = [
        (layout.imports_at(tree, place), layout.imports_at(tree, place, internal=True)) for place in Place
    ]
    assert counted == [(2, 1), (2, 1), (2, 1)]


def test_generated_code_is_not_measured(tmp_path: Path) -> None:
    tree = Tree(plant(tmp_path, workers__formats__data_pb2="x = 1\n", workers__formats__pt="x = 1\ny = 2\n"))
    assert layout.modules(tree) == 3
    assert (layout.lines(tree), layout.modules_over(tree, 1), layout.modules_over(tree, 2)) == (2, 1, 0)
    assert layout.loose_modules(tree) == {"ingest": 0, "workers": 0}


def test_every_function_has_a_complexity_of_its_own(tmp_path: Path) -> None:
    """What is inside of a function does not count twice."""
    text = (
        "class Scan:\n"
        "    def run(self):\n"
        "        def inner():\n"
        "            return 1 if self else 2\n"
        "        return [x for x in self if x and inner()]\n"
        "    class Part:\n"
        "        def empty(self): ...\n"
    )
    tree = Tree(plant(tmp_path, ingest__scan=text))
    assert functions.functions(tree) == 3
    assert (functions.complex_over(tree, 3), functions.complex_over_percent(tree, 3)) == (1, 33.3)
    assert functions.worst(tree)[0] == "4 ingest/scan.py:2 Scan.run"


def test_names_count_wherever_code_has_them(tmp_path: Path) -> None:
    """As variable, attribute, argument; not in text, and not as a part of another name."""
    text = '"""The one we found."""\ndef find(one, none):  # one\n    return one.found(one=none).one_found\n'
    tree = Tree(plant(tmp_path, ingest__find=text))
    assert (words.identifiers_named(tree, "one"), words.identifiers_named(tree, "found")) == (3, 1)
    assert words.identifiers_in_all(tree) == 8


def test_phrase_counts_in_text_of_code_and_pages(tmp_path: Path) -> None:
    text = (
        '"""This is no\ntest."""\n'
        "x = f'{y} is no number'  # these are no rows\n"
        "raise ValueError('There is no ' 'store, this no step')\n"
    )
    tree = Tree(plant(tmp_path, ingest__find=text))
    (tmp_path / "README.md").write_text("A dump is no store.")
    (tmp_path / "docs/design").mkdir(parents=True)
    (tmp_path / "docs/gc.md").write_text("These are no steps. It is nothing, it is not.")
    (tmp_path / "docs/design/001.md").write_text("A plan is no promise.")
    assert (words.negated(tree), words.negated_there(tree), words.negated_in_pages(tree)) == (4, 1, 2)


def test_collections_keyed_by_step_are_those_that_instances_keep(tmp_path: Path) -> None:
    text = (
        "@dataclass(slots=True)\n"
        "class Watcher:\n"
        "    known: dict[StepKey, str]\n"
        "    gone: set[model.StepKey]\n"
        "    ranks: dict[int, StepKey]\n"
        "    everywhere: ClassVar[set[StepKey]]\n"
        "    def look(self):\n"
        "        self._seen: Mapping[StepKey, int] = {}\n"
        "        local: dict[StepKey, int] = {}\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class View:\n"
        "    present: dict[StepKey, str]\n"
    )
    plant(tmp_path, ingest__watch=text, workers__model="class Model:\n    steps: set[StepKey]\n")
    assert classes.keyed_by_step(Tree(tmp_path)) == [
        "ingest/watch.py:3 Watcher.known: dict[StepKey, str]",
        "ingest/watch.py:4 Watcher.gone: set[model.StepKey]",
        "ingest/watch.py:8 Watcher._seen: Mapping[StepKey, int]",
    ]


def test_class_names_used_twice_are_listed_with_their_modules(tmp_path: Path) -> None:
    tree = Tree(plant(tmp_path, ingest__a="class View: ...\nclass Rule: ...", workers__b="class View: ..."))
    assert classes.names_used_twice(tree) == ["View: ingest.a, workers.b"]


def test_revisions_stand_side_by_side(tmp_path: Path) -> None:
    """A column tells of its revision, not of what is in the working tree now."""
    plant(tmp_path, ingest__plan="import ingest.watch", ingest__watch="import ingest.plan")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Plan and watch")
    (tmp_path / "ingest/plan.py").write_text("")
    columns = {}
    for revision in ("HEAD", "."):
        with sources_of(revision, tmp_path) as root:
            columns[report.title(revision)] = measure(root)
    table = report.markdown(columns)
    assert "| Figure | HEAD | working tree |" in table
    assert "| circles of modules, and their sizes | 1 (2) | 0 |" in table
    assert "## Circles of modules: HEAD\n\n- ingest.plan, ingest.watch\n" in table
    assert "## Circles of modules: working tree\n\n- none\n" in table
    assert report.as_json(columns)["HEAD"]["figures"].keys() == FIGURES.keys()


def test_unknown_revision_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    with pytest.raises(subprocess.CalledProcessError), sources_of("gone", tmp_path):
        pass


def git(repository: Path, *arguments: str) -> None:
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    subprocess.run(["git", *author, *arguments], cwd=repository, check=True)
