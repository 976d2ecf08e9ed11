"""YAML as other tools read it: version 1.1, in which yes and on are true.

Study files are YAML 1.2. Numbers such as 1e-4, which PyYAML reads as a text, are numbers here: each of these files
means one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stagetree.spec.file import StudyLoader, read

_TIME = "tag:yaml.org,2002:timestamp"


class Loader(StudyLoader):
    """The plain values of YAML 1.1, without dates; and the checks of study files, such as for a key written twice."""

    yaml_implicit_resolvers: dict[str, Any] = {  # noqa: RUF012
        letter: [
            *(
                (tag, pattern)
                for tag, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(letter, [])
                if tag != _TIME
            ),
            *StudyLoader.yaml_implicit_resolvers.get(letter, []),
        ]
        for letter in yaml.SafeLoader.yaml_implicit_resolvers.keys() | StudyLoader.yaml_implicit_resolvers.keys()
    }


for _tag in ("bool", "int", "float"):
    _name = f"tag:yaml.org,2002:{_tag}"
    Loader.add_constructor(_name, yaml.SafeLoader.yaml_constructors[_name])


def read_yaml(path: Path) -> Any:
    """The content of a YAML file, or of a JSON file if its name ends in `.json`. Raises `SpecError`."""
    return read(path, Loader)
