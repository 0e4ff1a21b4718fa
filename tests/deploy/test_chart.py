"""deploy/helm/allhands as it is written; tests/places renders it."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from support.deployments.stage import ROOT

CHART = ROOT / "deploy/helm/allhands"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def list_values(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all values that are no mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from list_values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_templates_use_the_values_that_there_are_and_no_others() -> None:
    text = "".join(one.read_text() for one in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    known = set(list_values(VALUES))
    assert {one for one in known if not any(f"{one}.".startswith(f"{u}.") for u in used)} == set()
    assert {one for one in used if not any(f"{k}.".startswith(f"{one}.") for k in known)} == set()


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
