"""Wheel, image and tour: what is in them, and that they run."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli import environment
from tests.demo import STEPS
from tests.stores import unpack
from tests.tour import RULES

# Wheel and source distribution: what is in them, and the demo with nothing of the repository at hand.


ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
UV = Path(sys.executable).with_name("uv")


@dataclass(frozen=True)
class Built:
    """What `make dist` makes."""

    wheel: Path
    sdist: Path


def call(words: Sequence[str | Path], cwd: Path, *, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run a program that has no environment variable by which it could import from this repository.

    It finds the compiled kernels there, if its sources of them are the same: they take half a minute.
    """
    env = {name: value for name, value in environment().items() if not name.startswith("PYTHON")}
    env["NUMBA_CACHE_DIR"] = str(ROOT / "workers" / "arrays" / "compiled" / "__pycache__")
    done = subprocess.run(
        words,
        cwd=cwd,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


def build(source: Path, into: Path, *targets: str) -> list[Path]:
    chosen = [word for target in targets for word in ("-t", target)]
    call([sys.executable, "-m", "hatchling", "build", *chosen, "-d", into], source)
    return sorted(into.iterdir())


def content_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    wheel, sdist = build(ROOT, tmp_path_factory.mktemp("dist"))
    return Built(wheel, sdist)


def test_wheel_has_every_file_of_the_packages_and_nothing_else(built: Built) -> None:
    """Rules, templates, what protoc made, and the marks of typed packages; no test, no cache."""
    packed = {name for name in content_of(built.wheel) if ".dist-info/" not in name}
    ours = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == ours
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
    for end in (".yml", ".j2", ".proto", "_pb2.py", "_pb2.pyi"):
        assert any(name.endswith(end) for name in packed), end


def test_source_distribution_makes_the_same_wheel(built: Built, tmp_path: Path) -> None:
    call(["tar", "-xf", built.sdist], tmp_path)
    (source,) = tmp_path.iterdir()
    assert not (source / "tests").exists()
    (again,) = build(source, tmp_path / "dist", "wheel")
    assert content_of(again) == content_of(built.wheel)


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.timeout(600)
def test_demo_runs_from_the_wheel_and_its_declared_dependencies_alone(built: Built, tmp_path: Path) -> None:
    """In an environment of its own, far from the repository; what is not declared would be missing."""
    prefix = tmp_path / "environment"
    call([UV, "venv", "--quiet", "--no-project", "--python", sys.executable, prefix], tmp_path)
    install(built.wheel, prefix)

    version = call([prefix / "bin" / "dump-ingest", "--version"], tmp_path).stdout
    assert version.split() == ["dump-ingest", PROJECT["project"]["version"]]
    where = "import ingest, workers; print(ingest.__file__, workers.__file__)"
    for path in call([prefix / "bin" / "python", "-c", where], tmp_path).stdout.split():
        assert Path(path).is_relative_to(prefix)

    (tmp_path / "demo").mkdir()
    (unpack("nan-log-2rank", tmp_path) / "dump").rename(tmp_path / "demo" / "dump")
    said = [
        call([prefix / "bin" / "dump-ingest", *shlex.split(command)], tmp_path).stdout for _, command in STEPS
    ]
    assert "NaN was born in Log" in said[-1]


def install(wheel: Path, prefix: Path) -> None:
    """Install from uv's cache, which the installation that runs this test has filled; else from the index."""
    pins = ROOT / "requirements" / "runtime.txt"
    into: list[str | Path] = ["--python", prefix / "bin" / "python"]
    words = [UV, "pip", "install", "--quiet", *into, "--only-binary", ":all:", "--constraint", pins, wheel]
    if call([*words, "--offline"], prefix, code=None).returncode:
        call(words, prefix)
    call([UV, "pip", "check", *into], prefix)


# The Dockerfile, as text; tests/integration/test_podman.py builds and runs it.

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_base_of_the_image_is_pinned() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(bases) - {*stages} == {"${PYTHON_IMAGE}"}
    assert re.search(r"^ARG PYTHON_IMAGE=\S+:[\w.-]+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)


def test_image_runs_as_a_number_other_than_root() -> None:
    """Kubernetes can tell that a name is not root only by its number."""
    assert re.search(r"^ARG UID=[1-9]\d*$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.rindex("USER ${UID}:${UID}") > DOCKERFILE.rindex("\nRUN ")


def test_image_is_made_of_what_is_there_and_not_ignored() -> None:
    admitted = re.findall(r"^!(.*)", (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert "ingest" in copied
    for source in copied:
        assert (ROOT / source).exists()
        assert {source, *map(str, Path(source).parents)} & {*admitted}


# `make tour`: what a newcomer clicks through is there, and is gone afterwards.


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (of the tour itself)
        body: bytes = answer.read()
        return body.decode()


@pytest.mark.dask
@pytest.mark.slow
def test_every_address_answers_and_ctrl_c_ends_it_all(tmp_path: Path) -> None:
    words = ["--directory", str(tmp_path / "tour"), "--every", "0.5", "--healthy", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.tour", *words], stdout=subprocess.PIPE, text=True, bufsize=1
    ) as tour:
        assert tour.stdout is not None
        try:
            said = ""
            while not re.search(r"rank 1 step [2-9]", said):
                line = tour.stdout.readline()
                assert line, said
                said += line
            urls = re.findall(r"http://\S+", said)
            assert len(urls) >= 4
            for url in urls:
                assert get(url)
            if prometheus := re.search(r"(http://[\d.:]+)\S*/alerts", said):
                rules = json.loads(get(f"{prometheus[1]}/api/v1/rules"))["data"]["groups"]
                assert {group["file"] for group in rules} == {str(RULES)}
                listing = f"{prometheus[1]}/api/v1/targets"
                for _ in range(60):
                    targets = json.loads(get(listing))["data"]["activeTargets"]
                    if [target["health"] for target in targets] == ["up"] * 5:
                        break
                    time.sleep(0.25)
                assert {target["health"] for target in targets} == {"up"}
                assert len(targets) == 5
        finally:
            tour.send_signal(signal.SIGINT)
        tour.wait(40)
        assert tour.returncode == 0
    assert (tmp_path / "tour" / "run.zarr" / "rank_1" / "step_2" / "zarr.json").exists()
    with pytest.raises(OSError):  # noqa: PT011  (whatever says that nobody listens)
        get(urls[-1])


def test_make_has_it() -> None:
    assert re.search(
        r"^tour: .*\n\t.*-m tests\.tour$", (RULES.parents[2] / "Makefile").read_text(), re.MULTILINE
    )
