"""The fields that docs/output.md lists, and those of a document."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from support.documents.pages import ROOT

_KIND = re.compile(r"### `(\w+)`\n(.*?)(?=\n### |\Z)", re.DOTALL)
_ROW = re.compile(r"^\| `([\w.\[\]]+)` \| ([a-z ]+) \|", re.MULTILINE)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
COMMON = ("kind", "version", "time")


def read_documented() -> dict[str, dict[str, str]]:
    """Return the types of the documented fields of each kind, by path."""
    text = (ROOT / "docs/output.md").read_text()
    return {kind: dict(_ROW.findall(body)) for kind, body in _KIND.findall(text)}


def check_fields(document: Mapping[str, Any], *, is_full: bool = False) -> None:
    """Check that a document has the fields of its kind, with their types, and no other.

    Lists may be empty, unless `is_full`: then every documented field is there.
    """
    documented = read_documented()[document["kind"]]
    assert (*document,)[:3] == COMMON
    assert document["version"] == 1
    assert _TIME.fullmatch(document["time"])
    own = {name: value for name, value in document.items() if name not in COMMON}
    leaves = [*_walk(own, documented, "")]
    unknown = {path for path, _ in leaves} - documented.keys()
    assert not unknown, f"{document['kind']} has fields that are not documented: {unknown}"
    for path, value in leaves:
        types = documented[path].split(" or ")
        assert _name_type(value, types) in types, f"{path} is {value!r}, not {documented[path]}"
    found = {path for path, _ in leaves}
    in_empty_list = [path for path in documented if not is_full and _is_in_empty(own, path)]
    missing = documented.keys() - found - {*in_empty_list}
    assert not missing, f"{document['kind']} lacks documented fields: {missing}"


def _walk(value: Any, documented: Mapping[str, str], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values of the leaves, and of what is documented as a whole."""
    if path and path in documented:
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk(inner, documented, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, documented, f"{path}[]")
    else:
        yield path, value


def _is_in_empty(value: Any, path: str) -> bool:
    """Return whether a path leads into lists that are all empty."""
    name, found, rest = path.partition("[]")
    if not found:
        return False
    inner = value
    for part in name.strip(".").split("."):
        inner = inner[part]
    assert isinstance(inner, list)
    return all(_is_in_empty(one, rest.removeprefix(".")) for one in inner)


def _name_type(value: Any, wanted: list[str]) -> str:
    if isinstance(value, str):
        return "time" if "time" in wanted and _TIME.fullmatch(value) else "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) and "integer" in wanted:
        return "integer"
    names = {type(None): "null", int: "number", float: "number", list: "list", dict: "object"}
    return names[type(value)]
