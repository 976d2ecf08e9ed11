"""`stagetree schema`: the JSON Schema of study files, for editors and programs."""

from __future__ import annotations

from app.cli.output import print_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> None:
    """Print the JSON Schema of study files, by which editors complete and check them.

    An editor with a YAML language server reads it where the first line of a study file names it:
    `# yaml-language-server: $schema=study.schema.json`

    \b
    Example:  stagetree schema > study.schema.json
    """
    from stagetree.spec import StudySpec

    print_json({"$schema": DIALECT} | StudySpec.model_json_schema() | {"title": "A study of stagetree"})
