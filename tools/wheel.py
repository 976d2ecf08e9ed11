"""Builds the wheel and the sdist, and tries them as a stranger would: `python -m tools.wheel [base] [server] [all]`.

Each extra that is named is installed into a fresh environment, in which commands run in an empty folder, far from the
checkout. Without a name only the files are checked, which takes a minute and needs no registry.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 2 * 2**20
MOST_BASE_BYTES = 80 * 2**20
EXTRAS = ("base", "server", "all")
CLASSIFIERS = ("Operating System :: ", "Programming Language :: Python :: 3.", "Typing :: Typed")
URLS = ("Source", "Documentation", "Changelog", "Issues")
WANTED = (
    "stagetree/py.typed",
    "app/page/dist/index.html",
    "app/migrations/env.py",
    "app/examples/digits/study.yaml",
    "app/agents/skill/AGENTS.md",
)
BUILT_FROM = ("pyproject.toml", "hatch_build.py", "LICENSE", "app/page/package-lock.json", "examples/digits/study.yaml")

INSTALLED_BYTES = """
import sysconfig, pathlib
files = [path for path in pathlib.Path(sysconfig.get_path("purelib")).rglob("*") if path.is_file()]
ours = [path for path in files if not path.relative_to(sysconfig.get_path("purelib")).parts[0].startswith("pip")]
print(sum(path.stat().st_size for path in ours if path.suffix != ".pyc"))
"""


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel, which is built from the sdist as pip does, and the sdist."""
    _run(ROOT, sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    _run(source, sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    [wheel] = folder.glob("*.whl")
    return wheel, sdist


def faults(wheel: Path, sdist: Path) -> list[str]:
    """The faults of the two files, each in a sentence."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [place] = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(place))
    with tarfile.open(sdist) as source:
        brought = {name.partition("/")[2] for name in source.getnames()}
    found = [f"the wheel lacks {name}" for name in WANTED if name not in names]
    found += [f"the sdist lacks {name}" for name in BUILT_FROM if name not in brought]
    found += [f"the wheel has a test: {name}" for name in names if re.search(r"(^|/)(tests?/|test_|conftest)", name)]
    found += [f"the wheel has a file outside of its packages: {name}" for name in names if not _is_ours(name)]
    if (size := wheel.stat().st_size) > MOST_BYTES:
        found.append(f"the wheel has {size / 2**20:.2f} MiB, more than {MOST_BYTES / 2**20:.0f}")
    if not any(name.endswith("licenses/LICENSE") for name in names):
        found.append("the wheel lacks its licence")
    return found + metadata_faults(metadata)


def _is_ours(name: str) -> bool:
    return name.split("/")[0] in ("app", "stagetree") or ".dist-info" in name.split("/")[0]


def metadata_faults(metadata: Message) -> list[str]:
    """The faults of a package's metadata and of the page that PyPI shows."""
    classifiers, urls = metadata.get_all("Classifier", []), metadata.get_all("Project-URL", [])
    found = [f"no classifier begins with {each}" for each in CLASSIFIERS if not _begins(classifiers, each)]
    found += [f"there is no URL {each}" for each in URLS if not _begins(urls, f"{each}, https://")]
    found += [f"there is no {name}" for name in ("Author", "License-Expression", "Summary") if not metadata[name]]
    if metadata["Description-Content-Type"] != "text/markdown":
        found.append("the description is no Markdown")
    text = str(metadata.get_payload())
    relative = re.findall(r"\]\((?!https?://|#)([^)]*)\)", text)
    return found + [f"the description links to {each}, which leads nowhere on PyPI" for each in relative]


def _begins(lines: list[str], text: str) -> bool:
    return any(line.startswith(text) for line in lines)


def try_extra(wheel: Path, extra: str, folder: Path) -> None:
    """Install the wheel with an extra, and run in an empty folder what its users would."""
    venv.create(folder / "environment", with_pip=True)
    programs, here = folder / "environment" / "bin", folder / "empty"
    here.mkdir()
    what = f"{wheel}[{extra}]" if extra != "base" else str(wheel)
    constraints = ROOT / "constraints.txt"
    _run(here, programs / "python", "-m", "pip", "install", "--quiet", "--no-compile", "-c", constraints, what)
    stagetree = str(programs / "stagetree")
    _run(here, stagetree, "init")
    assert "steps" in _run(here, stagetree, "preview", "study.yaml", "--slots", "2")
    if extra != "all":
        for command in ("check", "run"):
            sentence = _run(here, stagetree, command, "study.yaml", code=2)
            assert sentence.endswith("pip install 'stagetree[all]'\n") and sentence.count("\n") == 1, sentence
    if extra == "base":
        size = int(_run(here, programs / "python", "-c", INSTALLED_BYTES))
        print(f"the base install has {size / 2**20:.0f} MiB", file=sys.stderr)
        assert size <= MOST_BASE_BYTES, f"the base install has {size / 2**20:.0f} MiB"
    if extra == "all":
        assert "\nNext:\n" in _run(here, stagetree, "demo", "--slots", "2", "--set", "tuner.max_steps=2")
        assert "the same, bit for bit" in _run(here, stagetree, "check", "study.yaml")
        _open(here, stagetree)


def _open(here: Path, stagetree: str) -> None:
    """Look at the studies of the folder in the page."""
    with subprocess.Popen([stagetree, "open", "--port", "0"], cwd=here, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = re.search(r"http://\S+", server.stdout.readline())[0]  # type: ignore[index]
            for path, text in (("/", "<title>"), ("/api/v1/studies", "digits-grid")):
                with urllib.request.urlopen(url + path, timeout=30) as answer:
                    assert text in answer.read().decode()
        finally:
            server.terminate()


def _run(folder: Path, *command: object, code: int = 0) -> str:
    """Run a command and return its output. Raises `AssertionError` for another exit code."""
    print("$", *command, file=sys.stderr)
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout or done.stderr


def main(extras: list[str]) -> int:
    """Build, check and try. The exit code."""
    if unknown := set(extras) - set(EXTRAS):
        print(f"extras must be among {', '.join(EXTRAS)}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as built:
        wheel, sdist = build(Path(built))
        if found := faults(wheel, sdist):
            print(*found, sep="\n", file=sys.stderr)
            return 1
        for extra in extras:
            with tempfile.TemporaryDirectory() as folder:
                try_extra(wheel, extra, Path(folder))
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.2f} MiB, as it should be; tried: {extras or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
