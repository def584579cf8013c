"""Prints what pyproject.toml lists by these names: "dependencies", an extra, a dependency group.

pip reads dependency groups from version 25.1 on; Python 3.11 comes with an older one.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text("utf-8")
    pyproject = tomllib.loads(text)
    project = pyproject["project"]
    listed = {
        "dependencies": project["dependencies"],
        **project["optional-dependencies"],
        **pyproject["dependency-groups"],
    }
    for name in sys.argv[1:]:
        print(*listed[name], sep="\n")


if __name__ == "__main__":
    main()
