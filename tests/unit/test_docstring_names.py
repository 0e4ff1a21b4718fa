"""Names between backticks in docstrings are names of the code: renames reach the prose."""

import ast
import builtins
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("client/allhands", "server/allhands_server", "proto/allhands_proto")
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?`")

FOREIGN_ROOTS = {
    *("ah", "asyncio", "grpc", "jax", "joblib", "lightgbm", "numpy", "threading", "torch"),
    *("Tensor", "xgboost"),
}
"""First parts of dotted names that belong to other packages, or to this one's public face."""
FOREIGN_NAMES = {
    "MPI_Comm_split",
    "Parallel",
    "RendezvousParameters",
    "TypedDict",
    "__torch_dispatch__",
    "as_completed",
    "backward",
    "jit",
    "join_device",
    "preexec_fn",
    "read_timeout",
    "store_type",
    "wait_tensor",
}
"""Names of MPI, PyTorch, JAX, joblib and the standard library that the code itself does not use."""
LITERALS = {"NOT_SERVING", "Test", "__init__.pyi", "counts"}
"""Values, prefixes and files that docstrings quote without a definition of that name."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find_identifiers(tree: ast.AST) -> set[str]:
    """Return the identifiers used or defined in a tree."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=alias):
                found.update((alias or name).split("."))
    return found


def list_docstrings(node: ast.AST) -> list[str]:
    """Return the docstring of a definition, and the docstrings of its attributes."""
    return [
        part.value.value
        for part in getattr(node, "body", [])
        if isinstance(part, ast.Expr)
        and isinstance(part.value, ast.Constant)
        and isinstance(part.value.value, str)
    ]


@dataclass
class Vocabulary:
    """Names permitted in any docstring of the package."""

    names: set[str] = field(default_factory=set)

    def learn(self, tree: ast.Module) -> None:
        """Add the definitions, attributes and short string values of a module."""
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.names.add(node.name)
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    self.names.add(name)
                case ast.Constant(value=str(text)) if text.isidentifier():
                    self.names.add(text)
            if isinstance(node, ast.ClassDef | ast.Module):
                for part in node.body:
                    if isinstance(part, ast.Assign | ast.AnnAssign):
                        self.names |= find_identifiers(part)

    def find_unknown(self, tree: ast.Module) -> Iterator[str]:
        """Yield the names quoted in a module's docstrings without a definition."""
        yield from self._visit(tree, find_identifiers(tree))

    def _visit(self, node: ast.AST, scope: set[str]) -> Iterator[str]:
        for text in list_docstrings(node):
            for name in NAME.findall(text):
                if not self._is_known(name, scope):
                    yield name
        for part in list_definitions(node):
            outer = set() if isinstance(node, ast.Module) else scope
            yield from self._visit(part, outer | find_identifiers(part))

    def _is_known(self, name: str, scope: set[str]) -> bool:
        parts = name.split(".")
        if parts[0] in FOREIGN_ROOTS or name in FOREIGN_NAMES | LITERALS:
            return True
        return all(
            part in scope
            or part in self.names
            or hasattr(builtins, part)
            or keyword.iskeyword(part)
            for part in parts
        )


def list_definitions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the definitions directly within a node, also those under an `if` or `with`."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, Definition):
            yield part
        else:
            yield from list_definitions(part)


def list_sources(pattern: str) -> list[Path]:
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob(pattern))]
    return [path for path in found if "_pb2" not in path.name]


def learn_package() -> Vocabulary:
    vocabulary = Vocabulary()
    for path in list_sources("*.py"):
        vocabulary.names.update(path.relative_to(ROOT).with_suffix("").parts)
    for path in list_sources("*.py"):
        vocabulary.learn(ast.parse(path.read_text()))
    for path in list_sources("*.pyi"):  # of the native core, whose parameters are named there alone
        vocabulary.names |= find_identifiers(ast.parse(path.read_text()))
    return vocabulary


def test_names_in_docstrings_are_those_of_the_code() -> None:
    vocabulary = learn_package()
    unknown = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in list_sources("*.py")
        for name in vocabulary.find_unknown(ast.parse(path.read_text()))
    ]
    assert unknown == []


def test_a_name_of_before_a_rename_is_found() -> None:
    module = ast.parse(
        '''
"""A module; see `old_module.run` and `Known`."""
class Known:
    size = 3
    """As `size` of `grown`."""
    def act(self, seconds):
        """Wait for `seconds`, up to `limit`; see `Known.act()` and `torch.wait`."""
def other(limit):
    """Raise `limit`, and none of `seconds`."""
'''
    )
    vocabulary = Vocabulary()
    vocabulary.learn(module)
    assert list(vocabulary.find_unknown(module)) == ["old_module.run", "grown", "limit", "seconds"]
