"""Coordinator endpoints: names, discovery, and translation of errors."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from allhands import errors
from allhands.coordinator import endpoint as endpoints
from allhands.coordinator.endpoint import (
    Address,
    Endpoint,
    apply_notice,
    configure_channel,
    find_coordinator,
    parse_url,
)
from allhands.coordinator.status_errors import translate_error
from allhands_proto.notice import Notice, post

# ---------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ah://127.0.0.1:7070", Address("127.0.0.1", 7070)),
        ("ah://127.0.0.1:7070/", Address("127.0.0.1", 7070)),
        ("ah://coordinator.example:1/train", Address("coordinator.example", 1, "train")),
        ("ah://[::1]:7070/j", Address("::1", 7070, "j")),
        ("ah://[fe80::1]:65535", Address("fe80::1", 65535)),
        ("ah://h:7070/team:job@2.1+x", Address("h", 7070, "team:job@2.1+x")),
    ],
)
def test_a_url_names_host_port_and_job(url: str, address: Address) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize("url", ["ah://127.0.0.1:7070", "ah://[::1]:7070/j", "ah://h:1/j"])
def test_an_address_gives_back_its_url(url: str) -> None:
    assert parse_url(url).url == url


def test_the_target_of_an_ipv6_address_has_brackets() -> None:
    assert parse_url("ah://[::1]:7070").target == "[::1]:7070"


def test_several_daemons_stand_in_one_url() -> None:
    url = "ah://h1:1,[::1]:2,h3:3/job"
    address = parse_url(url)
    assert address.url == url
    assert address.target == "h1:1,[::1]:2,h3:3"
    assert [(one.host, one.port, one.job) for one in address.daemons] == [
        ("h1", 1, "job"),
        ("::1", 2, "job"),
        ("h3", 3, "job"),
    ]
    assert not address.is_loopback
    assert parse_url("ah://127.0.0.1:1,localhost:2").is_loopback
    with pytest.raises(ValueError, match="no port in 'ah://h2/job'"):
        parse_url("ah://h1:1,h2/job")
    with pytest.raises(ValueError, match="no token"):
        parse_url("ah://h1:1,secret@h2:1/job")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "ah://"),
        ("127.0.0.1:7070", "ah://"),
        ("tcp://127.0.0.1:7070", "ah://"),
        ("ah://", "no host"),
        ("ah://:7070", "no host"),
        ("ah://host", "no port"),
        ("ah://host/job", "no port"),
        ("ah://host:0", "no port"),
        ("ah://host:65536", "ort"),
        ("ah://host:seventy", "ort"),
        ("ah://::1:7070", "brackets"),
        ("ah://[::1:7070", "Invalid IPv6"),
        ("ah://host:1/a/b", "one job's name"),
        ("ah://host:1/a b", "one job's name"),
        ("ah://host:1/job?x=1", "one job's name"),
        ("ah://host:1/job#x", "one job's name"),
    ],
)
def test_a_malformed_url_is_refused_with_the_reason(url: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_url(url)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("url", ["ah://s3cret@host:1/j", "ah://u:s3cret@host:1", "s3cret@host:x"])
def test_a_token_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="ALLHANDS_TOKEN") as caught:
        parse_url(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("example.com", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback_is_this_host_and_nothing_else(host: str, is_loopback: bool) -> None:
    assert Address(host, 1).is_loopback is is_loopback


# ---------------------------------------------------------------- finding


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def _post(port: int, kind: str = "daemon", host: str = "127.0.0.1") -> None:
    post(Notice(host=host, port=port, token=f"of-{port}", pid=os.getpid(), kind=kind))


def _token(address: Address, given: str | None = None) -> str | None:
    return apply_notice(Endpoint(address, given)).token


def test_a_token_that_is_given_goes_before_the_notice() -> None:
    _post(7070)
    here = Address("127.0.0.1", 7070)
    assert _token(here, "given") == "given"
    assert _token(here) == "of-7070"
    found = find_coordinator("ah://127.0.0.1:7070", {"ALLHANDS_TOKEN": "inherited"}, token="given")
    assert found.token == "given"
    assert find_coordinator("ah://127.0.0.1:7070", {"ALLHANDS_TOKEN": "of-it"}).token == "of-it"


def test_a_notice_is_not_shown_to_another_host() -> None:
    _post(7070)
    assert _token(Address("10.0.0.1", 7070)) is None


@pytest.fixture
def own_addresses(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The addresses of this host beyond loopback."""
    own = {"10.0.0.1", "fd00::1"}
    monkeypatch.setattr(endpoints, "stays_on_host", own.__contains__)
    return own


def _post_reached_at(*addresses: str, host: str = "127.0.0.1", tls_ca: str = "") -> None:
    post(Notice(host, 7070, "t", os.getpid(), "daemon", tls_ca=tls_ca, addresses=addresses))


@pytest.mark.usefixtures("own_addresses")
@pytest.mark.parametrize("listed", ["10.0.0.1:7070", "0.0.0.0:7070", "[::]:7070"])
def test_a_notice_counts_for_its_coordinators_addresses_on_this_host(listed: str) -> None:
    _post_reached_at("127.0.0.1:7070", listed, host="10.0.0.1")
    here = Address("10.0.0.1", 7070)
    assert _token(here) == "t"
    for token in (None, "t"):  # ranks of a launch are given it
        found = apply_notice(Endpoint(here, token))
        assert configure_channel(found).metadata == (("authorization", "Bearer t"),)
    with pytest.raises(ValueError, match="another host"):
        configure_channel(replace(found, address=Address("10.0.0.2", 7070)))
    with pytest.raises(ValueError, match="another host"):
        configure_channel(apply_notice(Endpoint(here, "of somebody else")))
    for other in (Address("10.0.0.2", 7070), Address("10.0.0.1", 7071), Address("node", 7070)):
        assert _token(other) is None
        assert _token(Address("10.0.0.1", 7070, others=(other,))) is None


@pytest.mark.usefixtures("own_addresses")
def test_several_addresses_of_one_coordinator_have_its_notice() -> None:
    _post_reached_at("10.0.0.1:7070", "[fd00::1]:7070")
    both = parse_url("ah://10.0.0.1:7070,[FD00::1]:7070")
    assert _token(both) == "t"


@pytest.mark.usefixtures("own_addresses")
def test_a_notice_does_not_count_for_another_address_of_this_host() -> None:
    _post_reached_at("10.0.0.1:7070", host="10.0.0.1")
    assert _token(Address("fd00::1", 7070)) is None
    assert _token(Address("127.0.0.1", 7070)) is None, "somebody else may listen there"


def test_without_tls_an_address_that_this_host_has_no_more_gets_no_token(
    own_addresses: set[str],
) -> None:
    own_addresses.clear()
    _post_reached_at("10.0.0.1:7070", "0.0.0.0:7070")
    assert _token(Address("10.0.0.1", 7070)) is None
    _post_reached_at("10.0.0.1:7070", "0.0.0.0:7070", tls_ca="/ca.pem")
    assert _token(Address("10.0.0.1", 7070)) == "t", "its certificate proves who answers"
    assert _token(Address("10.0.0.2", 7070)) is None


def test_a_notice_counts_only_for_its_port() -> None:
    _post(7070)
    assert _token(Address("127.0.0.1", 7071)) is None


def test_a_notice_says_how_its_coordinator_does_tls() -> None:
    mine = Notice("127.0.0.1", 7070, "t", os.getpid(), "daemon", tls_ca="/c.pem", tls_name="node7")
    post(mine)
    for found in (find_coordinator(None, {}), find_coordinator("ah://localhost:7070", {})):
        assert (found.tls_ca, found.tls_name) == ("/c.pem", "node7")
    given = find_coordinator("ah://localhost:7070", {"ALLHANDS_TLS_CA": "/mine.pem"})
    assert (given.tls_ca, given.tls_name) == ("/mine.pem", "node7")


def test_authorities_for_other_coordinators_do_not_concern_one_that_is_found_here() -> None:
    _post(7070)
    assert find_coordinator(None, {"ALLHANDS_TLS_CA": "/ca.pem"}).tls_ca is None


def test_the_given_url_goes_before_the_environment() -> None:
    found = find_coordinator("ah://a:1/j", {"ALLHANDS_URL": "ah://b:2"})
    assert found.address == Address("a", 1, "j")


def test_the_environment_goes_before_the_notice() -> None:
    _post(7070)
    environ = {"ALLHANDS_URL": "ah://b:2/j", "ALLHANDS_TOKEN": "t", "ALLHANDS_TLS_CA": "/ca.pem"}
    assert find_coordinator(None, environ) == Endpoint(Address("b", 2, "j"), "t", "/ca.pem")


def test_a_malformed_url_of_the_environment_is_refused_with_the_name_of_the_variable() -> None:
    with pytest.raises(ValueError, match=r"^ALLHANDS_URL: not a coordinator's URL"):
        find_coordinator(None, {"ALLHANDS_URL": "http://h:1"})
    with pytest.raises(ValueError, match=r"^not a coordinator's URL"):
        find_coordinator("http://h:1", {"ALLHANDS_URL": "http://h:1"})


def test_an_empty_variable_counts_as_unset() -> None:
    _post(7070)
    environ = {"ALLHANDS_URL": "", "ALLHANDS_TOKEN": "", "ALLHANDS_TLS_CA": ""}
    found = find_coordinator(None, environ)
    assert (found.address, found.token) == (Address("127.0.0.1", 7070), "of-7070")
    assert found.tls_ca is None


def test_the_daemon_goes_before_embedded_coordinators() -> None:
    _post(7000, kind="embedded")
    _post(7070, kind="daemon")
    assert find_coordinator(None, {}).address.port == 7070


def test_the_only_embedded_coordinator_is_found() -> None:
    _post(7000, kind="embedded")
    assert find_coordinator(None, {}).token == "of-7000"


@pytest.mark.parametrize(("listens", "dialled"), [("0.0.0.0", "127.0.0.1"), ("::", "::1")])
def test_a_coordinator_on_all_addresses_is_dialled_on_loopback(listens: str, dialled: str) -> None:
    _post(7070, host=listens)
    assert find_coordinator(None, {}).address.host == dialled


def test_of_several_coordinators_the_caller_must_choose() -> None:
    _post(7070)
    _post(7071)
    with pytest.raises(ValueError, match="choose one") as caught:
        find_coordinator(None, {})
    assert "ah://127.0.0.1:7070" in str(caught.value)
    assert "ah://127.0.0.1:7071" in str(caught.value)


def test_the_token_of_several_coordinators_is_in_no_message() -> None:
    _post(7070)
    _post(7071)
    with pytest.raises(ValueError) as caught:
        find_coordinator(None, {})
    assert "of-707" not in str(caught.value)


def test_without_a_coordinator_the_error_says_how_to_start_one() -> None:
    with pytest.raises(errors.CoordinatorUnavailable, match="allhands serve"):
        find_coordinator(None, {})


# ---------------------------------------------------------------- dialling


def test_a_dial_carries_the_token_with_every_call() -> None:
    made = configure_channel(Endpoint(Address("::1", 7070), "t0ken"))
    assert made.target == "[::1]:7070"
    assert made.metadata == (("authorization", "Bearer t0ken"),)
    assert made.tls is None


def test_without_a_token_nothing_is_claimed() -> None:
    assert configure_channel(Endpoint(Address("localhost", 1), None)).metadata == ()


def test_a_bundle_of_authorities_makes_the_channel_secure(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"-----BEGIN CERTIFICATE-----")
    made = configure_channel(Endpoint(Address("h", 1), None, str(bundle)))
    assert made.tls == (bundle.read_bytes(), None, None)


def test_a_missing_bundle_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        configure_channel(Endpoint(Address("h", 1), None, "/nowhere.pem"))


def test_a_token_that_no_header_can_carry_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValueError, match="line's end") as caught:
        configure_channel(Endpoint(Address("localhost", 1), "s3cret\n"))
    assert "s3cret" not in str(caught.value)


# ---------------------------------------------------------------- plaintext


def _standing_for(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name stand for these addresses."""

    def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::1", "0.0.0.0", "::ffff:10.0.0.1"])
def test_no_token_goes_to_another_host_in_plaintext(host: str) -> None:
    with pytest.raises(ValueError, match="ALLHANDS_TLS_CA") as caught:
        configure_channel(Endpoint(Address(host, 7070), "s3cret"))
    assert "ALLHANDS_INSECURE=1" in str(caught.value)
    assert "--insecure" in str(caught.value)
    assert host in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_network_of_the_users_own_may_see_plaintext() -> None:
    made = configure_channel(Endpoint(Address("10.0.0.1", 7070), "s3cret", insecure=True))
    assert made.tls is None
    assert made.target == "10.0.0.1:7070"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback_needs_neither_tls_nor_leave(host: str) -> None:
    assert configure_channel(Endpoint(Address(host, 7070), "s3cret")).endpoint.address.host == host


def test_a_name_that_stands_for_loopback_alone_is_dialled_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _standing_for(monkeypatch, "::1", "127.0.1.1")
    made = configure_channel(Endpoint(Address("here", 7070), "s3cret"))
    assert made.target == "127.0.1.1:7070"
    assert made.endpoint.address == Address("127.0.1.1", 7070)


def test_a_name_that_stands_for_another_host_too_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _standing_for(monkeypatch, "127.0.0.1", "10.0.0.1")
    with pytest.raises(ValueError, match="node7:7070"):
        configure_channel(Endpoint(Address("node7", 7070), "s3cret"))


def test_a_name_without_an_address_is_not_taken_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_up(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(ValueError, match="not known"):
        configure_channel(Endpoint(Address("node7", 7070), "s3cret"))


def test_leave_is_given_by_argument_or_variable() -> None:
    assert not find_coordinator("ah://b:2", {}).insecure
    assert not find_coordinator("ah://b:2", {"ALLHANDS_INSECURE": "0"}).insecure
    assert find_coordinator("ah://b:2", {"ALLHANDS_INSECURE": "1"}).insecure
    assert find_coordinator("ah://b:2", {}, insecure=True).insecure


# ---------------------------------------------------------------- refusals


class _Failed(grpc.RpcError):
    def __init__(
        self, code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._trailers


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.StoreTimeout),
        (grpc.StatusCode.UNAVAILABLE, errors.CoordinatorUnavailable),
        (grpc.StatusCode.CANCELLED, errors.CoordinatorUnavailable),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
        (grpc.StatusCode.NOT_FOUND, errors.NotFound),
        (grpc.StatusCode.INVALID_ARGUMENT, ValueError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.LimitExceeded),
        (grpc.StatusCode.OUT_OF_RANGE, ValueError),
        (grpc.StatusCode.ALREADY_EXISTS, errors.Refused),
        (grpc.StatusCode.FAILED_PRECONDITION, errors.Refused),
        (grpc.StatusCode.ABORTED, errors.Refused),
        (grpc.StatusCode.INTERNAL, errors.CoordinatorUnavailable),
        (grpc.StatusCode.UNKNOWN, errors.AllhandsError),
    ],
)
def test_each_status_becomes_its_exception_and_keeps_its_text(
    code: grpc.StatusCode, kind: type[Exception]
) -> None:
    meant = translate_error(_Failed(code, "the reason"), "do the thing", target="h:1")
    assert type(meant) is kind
    assert "the reason" in str(meant)
    assert "do the thing" in str(meant)


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
    ],
)
def test_a_join_that_is_refused_says_so(code: grpc.StatusCode) -> None:
    meant = translate_error(_Failed(code, ""), "join", target="h:1", refused=errors.JoinRefused)
    assert type(meant) is errors.JoinRefused
    assert meant.retry_after is None


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION])
def test_a_join_that_is_refused_for_now_says_when_to_try_again(code: grpc.StatusCode) -> None:
    failed = _Failed(code, "there is a world", (("allhands-retry-after", "0.250"),))
    meant = translate_error(failed, "join", target="h:1", refused=errors.JoinRefused)
    assert type(meant) is errors.JoinRefused
    assert meant.retry_after == 0.25
    assert str(meant) == "join: there is a world"


def test_a_timeout_says_the_word() -> None:
    meant = translate_error(_Failed(grpc.StatusCode.DEADLINE_EXCEEDED, ""), "wait", target="h:1")
    assert "timeout" in str(meant)
    assert isinstance(meant, TimeoutError)


def test_an_absent_coordinator_is_named_with_what_to_do() -> None:
    meant = translate_error(
        _Failed(grpc.StatusCode.UNAVAILABLE, ""), "wait", target="10.1.2.3:7070"
    )
    assert "10.1.2.3:7070" in str(meant)
    assert "`allhands serve`" in str(meant)


def test_an_unknown_status_is_named() -> None:
    meant = translate_error(_Failed(grpc.StatusCode.DATA_LOSS, ""), "wait", target="h:1")
    assert "DATA_LOSS" in str(meant)
