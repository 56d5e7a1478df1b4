"""What `make dist` makes: the same bytes each time, and a broker in an environment that has nothing else.

Guards O01.
"""

from __future__ import annotations

import email.parser
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.compat.test_readme import block
from tests.node import SOURCE, ChronikNode
from tools.man_pages import man_pages
from tools.sbom import read_lock

ROOT = SOURCE.parent
DEADLINE_S = 200
SUPPORTED = ("3.11", "3.12", "3.13")

pytestmark = pytest.mark.usefixtures("only_chronik")


def run(*command: str | Path, given: str = "", **env: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**kept, **env},
        input=given,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pythons() -> dict[str, str]:
    """The supported Pythons of this machine, with how each is started."""
    found = {}
    for version in SUPPORTED:
        installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        path = str(installed[-1]) if installed else shutil.which(f"python{version}")
        if path is not None:
            found[version] = path
    return found


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built twice; the tool fails if the two differ."""
    folder = tmp_path_factory.mktemp("packages") / "dist"
    run(sys.executable, "tools/dist.py", "--check", "--output", folder, PYTHONPATH=str(SOURCE))
    return folder


class InstalledNode(ChronikNode):
    """`python -m chronik` of an environment that knows nothing of this clone."""

    def __init__(self, folder: Path, python: Path) -> None:
        super().__init__(folder)
        self.python = python

    def command(self) -> list[str]:
        return [str(self.python), "-m", "chronik", *super().command()[3:]]

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in super().environment().items() if name != "PYTHONPATH"}


def test_a_supported_python_is_here() -> None:
    """The next test has one case for each; without any it would say nothing."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert all(f"Programming Language :: Python :: {version}" in declared for version in SUPPORTED)
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in pythons()


def installed(folder: Path, start: str, lock: str, dist: Path) -> Path:
    """The Python of a new environment that has a lock's packages and the wheel, and nothing else."""
    python = folder / "venv" / "bin" / "python"
    run(start, "-m", "venv", "--without-pip", folder / "venv")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "-q")
    run(*pip, "--no-compile", "--require-hashes", "-r", ROOT / "requirements" / f"{lock}.lock")
    run(*pip, "--no-compile", "--no-deps", *dist.glob("*.whl"))
    return python


@pytest.mark.parametrize("version", pythons())
def test_the_wheel_alone_serves_the_five_lines(
    version: str, dist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    python = installed(tmp_path, pythons()[version], "broker", dist)
    with InstalledNode(tmp_path / "node", python) as node:
        run(python, "-m", "chronik", "produce", "first", "-b", node.bootstrap, given="hello\n")
        acknowledged_s = time.monotonic() - began
        (wheel,) = dist.glob("*.whl")
        with capsys.disabled():
            print(
                f"\nPython {version}: wheel of {wheel.stat().st_size / 1e6:.1f} MB; first record "
                f"acknowledged {acknowledged_s:.1f} s after pip install began"
            )
        assert "site-packages" in run(python, "-c", "import chronik; print(chronik.__file__)")
        (tmp_path / "five.py").write_text(block("Five lines").replace("127.0.0.1:9092", node.bootstrap))
        assert run(sys.executable, tmp_path / "five.py").strip() == "b'hello'"
        said = run(tmp_path / "venv" / "bin" / "chronik", "topic", "list", "-b", node.bootstrap)
        assert "greetings" in said
        node.stop()


def test_the_wheel_with_its_extras_serves_sql_and_search(dist: Path, tmp_path: Path) -> None:
    python = installed(tmp_path, sys.executable, "run", dist)
    with InstalledNode(tmp_path / "node", python) as node:

        def chronik(*arguments: str, given: str = "") -> str:
            return run(python, "-m", "chronik", *arguments, given=given, CHRONIK_BOOTSTRAP=node.bootstrap)

        chronik("topic", "create", "orders", "--config", "searchable=true")
        chronik("produce", "orders", given='{"customer": "ada", "total": 12.5}\n')
        assert "12.5" in chronik("sql", "SELECT sum(total) FROM orders", "--format", "csv")
        assert "ada" in chronik("search", "orders", "customer:ada", "--refresh", "--json")
        node.stop()
    assert "s3" in run(python, "-c", "import obstore.store; print(obstore.store.S3Store.__name__.lower())")


def test_the_wheel_asks_for_what_the_locks_have(dist: Path) -> None:
    """Each extra, and `all` of them: what pip would take for the wheel is what the tests ran with."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = email.parser.Parser().parsestr(packed.read(name).decode())
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    locks = {"objects": "run", "query": "run", "spark": "dev", "": "broker"}
    assert set(metadata.get_all("Provides-Extra", [])) == {*locks, "all", "dev"} - {""}
    for extra, lock in locks.items():
        held = read_lock(ROOT / "requirements" / f"{lock}.lock")
        wanted = [one for one in required if one.marker is None or one.marker.evaluate({"extra": extra})]
        assert wanted
        for one in wanted:
            version = held[canonicalize_name(one.name)].version
            assert one.specifier.contains(version, prereleases=True), f"{one} and {version} in {lock}.lock"
    everything = next(one for one in required if one.name == "chronik")
    assert str(everything.marker) == 'extra == "all"'
    assert everything.extras == set(locks) - {""}


def test_wheel_and_sdist_hold_every_tracked_file_of_the_package(dist: Path) -> None:
    listed = run("git", "ls-files", "src").split()
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = {f"src/{name}" for name in packed.namelist()}
    with tarfile.open(sdist) as tar:
        in_sdist = {name.partition("/")[2] for name in tar.getnames()}
    assert set(listed) - in_wheel == set()
    assert set(listed) - in_sdist == set()


def test_wheel_and_sdist_hold_the_manual_pages(dist: Path) -> None:
    pages = {f"share/man/man1/{name}": page.encode() for name, page in man_pages().items()}
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if ".data/data/" in name]
        assert {name.partition(".data/data/")[2]: packed.read(name) for name in names} == pages
    with tarfile.open(sdist) as tar:
        assert pages.keys() <= {name.partition("/")[2] for name in tar.getnames()}


def test_others_may_read_all_of_it(dist: Path) -> None:
    """The check builds again as somebody with a stricter umask, and wrote the checksums as such."""
    made = list(dist.iterdir())
    assert {"SHA256SUMS"} < {path.name for path in made}
    assert {path.stat().st_mode & 0o777 for path in made} == {0o644}


def test_the_sbom_has_what_the_locks_have(dist: Path) -> None:
    (path,) = dist.glob("*.cdx.json")
    document = json.loads(path.read_text())
    components = {one["name"]: one for one in document["components"]}
    broker = read_lock(ROOT / "requirements" / "broker.lock")
    from_python = {name for name, one in components.items() if one["purl"].startswith("pkg:pypi/")}
    required = {name for name in from_python if components[name]["scope"] == "required"}
    assert required == set(broker)
    assert set(read_lock(ROOT / "requirements" / "run.lock")) <= from_python
    assert all(components[name]["version"] == one.version for name, one in broker.items())
    assert all(one["licenses"] and one["hashes"] for one in components.values())
    refs = {one["bom-ref"] for one in components.values()} | {document["metadata"]["component"]["bom-ref"]}
    assert {ref for one in document["dependencies"] for ref in (one["ref"], *one["dependsOn"])} <= refs


def test_the_licence_list_names_each_component(dist: Path) -> None:
    (path,) = dist.glob("*.licences.txt")
    (bom,) = dist.glob("*.cdx.json")
    names = {line.split()[0] for line in path.read_text().splitlines()[2:]}
    assert names == {one["name"] for one in json.loads(bom.read_text())["components"]}
