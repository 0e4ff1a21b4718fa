"""Contexts in a file, and the order of options, environment and contexts."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from allhands.cli.choice import CoordinatorChoice
from allhands.cli.contexts import (
    Context,
    Contexts,
    choose_context,
    load_contexts,
    locate_contexts,
    save_contexts,
)
from allhands.cli.endpoints import find_endpoint
from allhands.errors import CoordinatorUnavailable


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def prod(environ: dict[str, str], tmp_path: Path) -> Context:
    """A current context with a token and authorities."""
    token = write(tmp_path / "prod.token", "of-prod\n")
    context = Context("ah://prod:1/j", token_file=str(token), tls_ca="/prod-ca")
    other = Context("ah://other:2", tls_ca="/other-ca")
    save_contexts(Contexts({"prod": context, "other": other}, "prod"), environ)
    return context


def find(environ: dict[str, str], **options: Any) -> tuple[str, str | None, str | None]:
    """Return the chosen address, token and authorities."""
    found = find_endpoint(CoordinatorChoice(**options), environ)
    return found.address.target, found.token, found.tls_ca


def test_contexts_are_kept_for_their_user_alone(environ: dict[str, str]) -> None:
    assert load_contexts(environ) == Contexts()
    kept = Contexts({"a": Context("ah://h:1", insecure=True)}, "a")
    save_contexts(kept, environ)
    assert load_contexts(environ) == kept
    path = locate_contexts(environ)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in path.parent.iterdir()] == ["contexts.json"]


def test_they_are_in_the_home_directory_without_xdg_config_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".config/allhands/contexts.json"
    assert locate_contexts({}) == expected
    assert locate_contexts({"XDG_CONFIG_HOME": "relative"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"version": 2, "current": null, "contexts": {}}',
        '{"version": 1, "current": null, "contexts": {"a": {}}}',
        '{"version": 1, "current": null, "contexts": {"a": {"url": 7}}}',
        '{"version": 1, "current": null, "contexts": {"a": {"url": "ah://h:1", "verbs": []}}}',
    ],
)
def test_a_file_that_is_damaged_or_newer_is_refused_by_name(
    environ: dict[str, str], text: str
) -> None:
    path = locate_contexts(environ)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ValueError, match=str(path)):
        load_contexts(environ)


def test_what_is_used_or_removed_exists(environ: dict[str, str], prod: Context) -> None:
    known = load_contexts(environ)
    assert known.remove("prod").current is None
    assert known.remove("other").current == "prod"
    for call, advice in ((known.use, "; make it with"), (known.remove, "$"), (known.find, "; m")):
        with pytest.raises(ValueError, match=f"no context 'nix'; there are: other, prod{advice}"):
            call("nix")


def test_a_current_context_brings_its_credentials(environ: dict[str, str], prod: Context) -> None:
    assert find(environ) == ("prod:1", "of-prod", "/prod-ca")
    assert find(environ | {"ALLHANDS_CONTEXT": "other"}) == ("other:2", None, "/other-ca")
    assert find(environ, context="other") == ("other:2", None, "/other-ca")


def test_the_environment_goes_before_a_current_context_and_behind_a_named_one(
    environ: dict[str, str], prod: Context
) -> None:
    environ |= {"ALLHANDS_TOKEN": "of-environment", "ALLHANDS_TLS_CA": "/environment-ca"}
    assert find(environ) == ("prod:1", "of-environment", "/environment-ca")
    assert find(environ, context="prod") == ("prod:1", "of-prod", "/prod-ca")
    assert find(environ, context="other") == ("other:2", "of-environment", "/other-ca")


def test_options_go_before_all(environ: dict[str, str], prod: Context, tmp_path: Path) -> None:
    environ |= {"ALLHANDS_TOKEN": "of-environment"}
    own = {"token_file": write(tmp_path / "own", " of-option \n"), "tls_ca": Path("/option-ca")}
    for more in ({}, {"context": "prod"}):
        assert find(environ, **own, **more) == ("prod:1", "of-option", "/option-ca")
    named = find(environ, **own, coordinator="ah://named:3")
    assert named == ("named:3", "of-option", "/option-ca")


def test_a_folder_of_tls_files_stands_for_the_options_that_are_not_given(
    environ: dict[str, str], prod: Context, tmp_path: Path
) -> None:
    folder = tmp_path / "worker"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"--tls-dir=.*/worker holds no ca\.crt and no tls\.crt"):
        find(environ, tls_dir=folder)
    for name in ("ca.crt", "tls.crt", "tls.key"):
        write(folder / name, "")
    authorities = str(folder / "ca.crt")
    named = {"coordinator": "ah://named:3", "tls_dir": folder}
    assert find(environ, **named) == ("named:3", None, authorities)
    write(folder / "token", "of-folder\n")
    assert find(environ, tls_dir=folder) == ("prod:1", "of-folder", authorities)
    environ |= {"ALLHANDS_TOKEN": "of-environment", "ALLHANDS_TLS_CA": "/environment-ca"}
    assert find(environ, **named) == ("named:3", "of-folder", authorities)
    own = {"token_file": write(tmp_path / "own", "of-option\n"), "tls_ca": Path("/option-ca")}
    assert find(environ, **named, **own) == ("named:3", "of-option", "/option-ca")
    endpoint = find_endpoint(CoordinatorChoice(**named), environ)
    assert (endpoint.tls_cert, endpoint.tls_key) == (
        str(folder / "tls.crt"),
        str(folder / "tls.key"),
    )


def test_a_contexts_credentials_go_to_no_other_coordinator(
    environ: dict[str, str], prod: Context
) -> None:
    assert find(environ, coordinator="ah://named:3") == ("named:3", None, None)
    assert find(environ | {"ALLHANDS_URL": "ah://named:3"}) == ("named:3", None, None)
    assert find(environ | {"ALLHANDS_URL": "ah://named:3"}, context="prod")[0] == "prod:1"


def test_options_that_contradict_each_other_are_refused(
    environ: dict[str, str], prod: Context
) -> None:
    with pytest.raises(typer.BadParameter, match="--coordinator or --context"):
        find(environ, coordinator="ah://h:1", context="prod")
    with pytest.raises(typer.BadParameter, match="--tls-cert, --tls-key"):
        find(environ, tls_cert=Path("cert"))


def test_a_token_file_without_a_token_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    options = {"coordinator": "ah://h:1", "token_file": tmp_path / "none"}
    with pytest.raises(ValueError, match=r"token in .*/none cannot be read: No such file"):
        find(environ, **options)
    write(tmp_path / "none", "\n")
    with pytest.raises(ValueError, match=r"there is no token in .*/none"):
        find(environ, **options)


def test_without_any_context_it_is_the_coordinator_of_this_host(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert choose_context(environ) is None
    with pytest.raises(CoordinatorUnavailable, match="no coordinator of yours"):
        find(environ)


def test_a_secret_is_not_in_the_file(environ: dict[str, str], prod: Context) -> None:
    text = locate_contexts(environ).read_text()
    assert "of-prod" not in text
    assert json.loads(text)["contexts"]["prod"]["token_file"].endswith("prod.token")
