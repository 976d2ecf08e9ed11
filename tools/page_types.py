"""The types of the API's answers for the page, from the OpenAPI document: `app/page/src/api.d.ts`, never committed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import app
from app.main import create_app
from app.settings import Settings

PAGE = Path(app.__file__).parent / "page"


def main() -> int:
    """Write the document beside the page's sources, and have the types made from it."""
    with tempfile.TemporaryDirectory() as folder:
        document = create_app(Settings(database_url=f"sqlite:///{folder}/none.db", broker_url="memory://")).openapi()
    (PAGE / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(PAGE.parents[1] / "hatch_build.py"), "run", "types"], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
