"""Contexts: coordinators with their credentials, by name, in a file of the user's.

A context holds paths of files, never a secret. `$XDG_CONFIG_HOME/allhands/contexts.json`, else
`~/.config/allhands/contexts.json`, has mode 0600:

    {"version": 1, "current": NAME or null,
     "contexts": {NAME: {"url": str, "token_file": path or null, "tls_ca": path or null,
                         "tls_cert": path or null, "tls_key": path or null, "insecure": bool}}}
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path

from allhands_proto.quick_dataclass import dataclass

_VERSION = 1
_CHOICE_VARIABLE = "ALLHANDS_CONTEXT"


@dataclass(frozen=True, slots=True)
class Context:
    """A coordinator, and what it takes to be let in; files by absolute paths."""

    url: str
    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of a user, by name, and which is taken where none is named."""

    contexts: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def find(self, name: str) -> Context:
        """Return the context of a name.

        Raises:
            ValueError: there is none; the text lists those that there are.
        """
        if (found := self.contexts.get(name)) is None:
            raise ValueError(
                f"{self._explain_absence(name)}; make it with `allhands context set {name} "
                "--coordinator ah://HOST:PORT`"
            )
        return found

    def _explain_absence(self, name: str) -> str:
        existing = ", ".join(sorted(self.contexts)) or "none"
        return f"there is no context {name!r}; there are: {existing}"

    def put(self, name: str, context: Context) -> "Contexts":
        return replace(self, contexts={**self.contexts, name: context})

    def remove(self, name: str) -> "Contexts":
        """Return the contexts without one; the current one is none then, if it was that.

        Raises:
            ValueError: there is no such context.
        """
        if name not in self.contexts:
            raise ValueError(self._explain_absence(name))
        others = {one: context for one, context in self.contexts.items() if one != name}
        return Contexts(others, None if self.current == name else self.current)

    def use(self, name: str | None) -> "Contexts":
        """Return the contexts with another current one.

        Raises:
            ValueError: there is no such context.
        """
        if name is not None:
            self.find(name)
        return replace(self, current=name)


def locate_contexts(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's file of contexts."""
    configured = environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification: relative paths are to be ignored.
    base = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    return base / "allhands" / "contexts.json"


def choose_context(environ: Mapping[str, str]) -> Context | None:
    """Return the context that ALLHANDS_CONTEXT names, else the current one, else None.

    Raises:
        ValueError: the variable names none that there is, or the file cannot be read.
    """
    known = load_contexts(environ)
    name = environ.get(_CHOICE_VARIABLE) or known.current
    return None if name is None else known.find(name)


def load_contexts(environ: Mapping[str, str]) -> Contexts:
    """Read the user's contexts; without a file there are none.

    Raises:
        ValueError: the file cannot be read, or is not what this version writes.
    """
    path = locate_contexts(environ)
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, ValueError) as error:
        raise ValueError(f"the contexts in {path} cannot be read: {error}") from error
    try:
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r} is not {_VERSION}")
        contexts = {name: _read_context(one) for name, one in document["contexts"].items()}
        current = document["current"]
        return Contexts(contexts, current if current in contexts else None)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the contexts in {path} cannot be read: {error}") from error


def save_contexts(contexts: Contexts, environ: Mapping[str, str]) -> None:
    """Replace the user's file of contexts atomically, with mode 0600 in a folder of mode 0700.

    Raises:
        OSError: it cannot be written.
    """
    path = locate_contexts(environ)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {
        "version": _VERSION,
        "current": contexts.current,
        "contexts": {name: asdict(one) for name, one in sorted(contexts.contexts.items())},
    }
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(document, indent=2) + "\n")
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        raise


def _read_context(document: Mapping[str, object]) -> Context:
    """Read a context; names of later versions are refused, since they could restrict it."""
    if unknown := document.keys() - {one.name for one in fields(Context)}:
        raise ValueError(f"unknown names: {', '.join(sorted(unknown))}")
    for name, value in document.items():
        if name == "insecure":
            is_right = isinstance(value, bool)
        else:
            is_right = isinstance(value, str) or (value is None and name != "url")
        if not is_right:
            raise ValueError(f"{name} is {value!r}")
    return Context(**document)  # type: ignore[arg-type]  # checked above
