"""The steps of the image's build, without a container engine, and what comes out of them."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.dumps import unpack
from tests.servers.process import free_port

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
TOOLS = Path(sys.executable).parent.parent
#: An account that is in no /etc/passwd, as `runAsUser` gives.
UID = 54321


@dataclass(frozen=True)
class Image:
    """An installation as the image has it: of somebody else, and read-only."""

    prefix: Path
    scratch: Path

    def words(self, program: str, *args: object) -> list[str]:
        """Return the words that run a program as the user of the container."""
        become = (
            ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"] if os.geteuid() == 0 else []
        )
        return [*become, str(self.prefix / "bin" / program), *map(str, args)]

    def environment(self, temporary: Path | None = None) -> dict[str, str]:
        """Return what is in the environment of the image, with /tmp where it is given; there is no HOME."""
        set_here = re.search(r"^ENV (PATH=.*?)\n\n", DOCKERFILE, re.MULTILINE | re.DOTALL)
        assert set_here
        pairs = dict(word.partition("=")[::2] for word in re.findall(r"(\w+=[^\s\\]+)", set_here[1]))
        place = str(temporary or "/nowhere")
        return {**pairs, "PATH": f"{self.prefix}/bin:/usr/bin:/bin", "HOME": place, "TMPDIR": place} | {
            "DASK_TEMPORARY_DIRECTORY": place
        }

    def run(
        self, program: str, *args: object, code: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        done = subprocess.run(
            self.words(program, *args),
            check=False,
            capture_output=True,
            text=True,
            env=env or self.environment(self.scratch),
            cwd="/",
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done

    @contextmanager
    def running(self, program: str, *args: object) -> Iterator[int]:
        """Run a program in the background; gives its process id."""
        with subprocess.Popen(
            self.words(program, *args),
            env=self.environment(self.scratch),
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                yield process.pid
            finally:
                process.terminate()
                process.wait(30)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """Build once. uv has what it needs in its cache, from the installation that runs this test."""
    if not (TOOLS / "bin" / "uv").exists():
        pytest.skip("uv is not beside this interpreter")
    top = Path(tempfile.mkdtemp(prefix="image-"))  # not below tmp_path, which only its owner may enter
    top.chmod(0o755)
    try:
        done = subprocess.run(
            [ROOT / "deploy" / "container" / "build.sh", top / "stage" / "prefix", top / "prefix"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHON": _interpreter(), "TOOLS": str(TOOLS), "BYTECODE": "0"},
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
        assert "kernels are compiled for" in done.stdout
        # As a package does that is built below DESTDIR: where it was built is not where it runs.
        (top / "stage" / "prefix").rename(top / "prefix")
        scratch = top / "scratch"
        scratch.mkdir()
        scratch.chmod(0o1777)
        # Directories alone: the files are hard links into the cache of uv.
        _let_write(top / "prefix", "a-w")
        yield Image(top / "prefix", scratch)
    finally:
        _let_write(top, "u+w")
        subprocess.run(["rm", "-rf", top], check=True)


def _let_write(directory: Path, mode: str) -> None:
    subprocess.run(["find", directory, "-type", "d", "-exec", "chmod", mode, "{}", "+"], check=True)


def _interpreter() -> str:
    """Return an interpreter that every user can execute: the one that runs this may be in a home."""
    own = Path(os.path.realpath(sys.executable))
    debian = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    for candidate in (own, debian):
        if candidate.exists() and all(directory.stat().st_mode & 0o001 for directory in candidate.parents):
            return str(candidate)
    pytest.skip(f"only this user can execute {own}")


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestImage:
    """One build for all: it takes a quarter of a minute."""

    def test_runs_as_a_user_without_a_name_or_a_place_to_write_to(self, image: Image) -> None:
        env = image.environment()
        assert image.run("dump-ingest", "--version", env=env).stdout.startswith("dump-ingest ")
        assert image.run("dask", "--version", env=env).stdout.startswith("dask")
        assert "watch" in image.run("dump-ingest", "--help", env=env).stdout

    def test_kernels_are_loaded_and_not_compiled(self, image: Image) -> None:
        code = """if True:
            import sys
            from workers.arrays.compiled import kernels
            kernels.warm_up()
            print("numba" in sys.modules)
        """
        assert image.run("python", "-c", code, env=image.environment()).stdout.split() == ["False"]

    def test_takes_a_dump_in(self, image: Image) -> None:
        dump = unpack("nan-log-2rank", image.scratch)
        for path in (dump, *dump.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o444)
        store = image.scratch / "run.zarr"
        image.run("dump-ingest", "ingest", dump / "dump", "--store", store, "--quiet", "0", "--workers", "1")
        assert (store / "rank_1" / "step_2" / "zarr.json").exists()
        assert not list(image.scratch.rglob("*.nbc"))

    def test_its_bill_of_materials_is_what_was_locked(self, image: Image) -> None:
        document = json.loads((image.prefix / "share" / "sbom.cdx.json").read_text())
        assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
        assert document["metadata"]["component"]["name"] == "dump-ingest"
        listed = {(package["name"], package["version"]) for package in document["components"]}
        text = (ROOT / "requirements" / "runtime.txt").read_text()
        locked = set(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))
        assert listed
        assert listed <= locked  # some are locked for other machines alone
        assert {"distributed", "numpy", "zarr"} <= {name for name, _ in listed}
        references = {package["bom-ref"] for package in document["components"]} | {"dump-ingest"}
        assert {name for entry in document["dependencies"] for name in entry["dependsOn"]} <= references

    def test_health_is_asked_of_whatever_role_it_is(self, image: Image) -> None:
        port, metrics = free_port(), free_port()
        roles = {
            port: (
                "dask",
                "scheduler",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--dashboard-address",
                f":{port}",
            ),
            metrics: (
                *("dump-ingest", "watch", image.scratch, "--store", image.scratch / "other.zarr"),
                *("--metrics", f"127.0.0.1:{metrics}"),
            ),
        }
        for listens, words in roles.items():
            with image.running(*map(str, words)) as pid:
                codes = [self._health(image, pid)]
                for _ in range(100):
                    if codes[-1] == 0:
                        break
                    codes.append(self._health(image, pid))
                assert codes[-1] == 0, f"{words[1]} is not well on port {listens}"
        assert self._health(image, os.getpid()) == 0  # neither of them: it is enough that it runs

    @staticmethod
    def _health(image: Image, pid: int) -> int:
        done = subprocess.run(
            [image.prefix / "bin" / "dump-ingest-health", str(pid)], check=False, capture_output=True, cwd="/"
        )
        return done.returncode


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
