"""Print the least versions that pyproject.toml allows, as pip's constraints: >=1.2,<3 is ==1.2."""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"].values()
    for text in (*project["dependencies"], *(one for extra in extras for one in extra)):
        requirement = Requirement(text)
        least = [one.version for one in requirement.specifier if one.operator in (">=", "==")]
        if len(least) != 1:
            sys.exit(f"{text}: what is the least version?")
        print(f"{requirement.name}=={least[0]}")


if __name__ == "__main__":
    main()
