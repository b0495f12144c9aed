"""The gate: every kind with every sort of token, and what is remembered of tokens."""

import logging
from typing import Any

import pytest

from layby.core.replies import refuse
from layby.errors import UsageError
from layby.server import auth
from layby.server.auth import FORBIDDEN, UNAUTHORIZED, Gate, Identity, bearer
from layby.server.auth_config import AuthConfig
from layby.server.tokens import TokenVerifier
from tests.helpers.clocks import ManualClock
from tests.helpers.keys import public_pem, signed
from tests.helpers.sample_requests import GROUP, SAMPLES, request
from tests.helpers.visitors import (
    ABLE,
    ADMIN_KEY,
    BOUNDED,
    CONFIG,
    GRANTS,
    KEY,
    KNOWN,
    MINE,
    POLLING,
    REFUSED,
    UNABLE,
    expected,
    tokens,
)

NOW = 1_000_000_000_000
EXP = NOW // 1000 + 60


def token(which: int = 0, **claims: Any) -> str:
    return signed({"sub": "ann", "exp": EXP} | claims, which=which)


TOKENS = tokens(NOW // 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    return Gate(CONFIG, clock)


def identity(gate: Gate, name: str) -> Identity:
    who = gate.identify(TOKENS[name])
    assert isinstance(who, Identity)
    return who


@pytest.mark.parametrize("name", REFUSED)
def test_who_cannot_be_told_is_unauthorized(gate: Gate, name: str) -> None:
    """Whatever they ask for."""
    assert gate.identify(TOKENS[name]) == UNAUTHORIZED == refuse(401, "Unauthorized")


@pytest.mark.parametrize("name", KNOWN)
def test_every_kind_with_every_token(gate: Gate, name: str) -> None:
    """Over the whole matrix."""
    who = identity(gate, name)
    permitted = {kind: gate.permit(who, kind, request(kind, "mine/")) for kind in SAMPLES}
    assert permitted == {kind: expected(name, kind) for kind in SAMPLES}


def test_the_matrix_knows_every_answer() -> None:
    """It would prove little if one rule covered all."""
    answers = {name: [expected(name, kind) for kind in SAMPLES] for name in BOUNDED}
    assert all(None in each and FORBIDDEN in each for each in answers.values())
    assert len({str(each) for each in answers.values()}) == 3
    assert refuse(403, "Forbidden") == FORBIDDEN


@pytest.mark.parametrize("name", [*UNABLE, *BOUNDED])
def test_unknown_kinds_are_forbidden_before_they_are_unknown(gate: Gate, name: str) -> None:
    """The protocol's order: rights, then kinds."""
    unknown = refuse(400, "Unknown operation: no.such")
    assert gate.permit(identity(gate, name), "no.such", unknown) == FORBIDDEN


@pytest.mark.parametrize("name", ABLE)
def test_whoever_may_do_everything_hears_that_a_kind_is_unknown(gate: Gate, name: str) -> None:
    assert gate.permit(identity(gate, name), "no.such", refuse(400, "Unknown")) is None


def test_a_request_that_cannot_be_read_is_forbidden_to_who_has_no_prefix(gate: Gate) -> None:
    """With a prefix it gets its 400: it names nothing."""
    unread = refuse(400, "Invalid request: ...")
    assert gate.permit(identity(gate, "rights of none"), "promise.get", unread) == FORBIDDEN
    assert gate.permit(identity(gate, "a prefix"), "promise.get", unread) is None
    assert gate.permit(identity(gate, "a prefix"), "promise.search", unread) == FORBIDDEN


# --- polls and takes -------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("group", [GROUP, f"layby.{GROUP}"])
def test_a_group_is_polled_by_who_was_granted_it(gate: Gate, name: str, group: str) -> None:
    """The plain group, and the inboxes of our workers in it."""
    expected = None if name in POLLING else FORBIDDEN
    assert gate.permit_poll(identity(gate, name), group) == expected


@pytest.mark.parametrize("group", ["", "h", "gg", "G", "layby.", "layby.layby.g", "layby.h"])
def test_other_groups_are_not_polled(gate: Gate, group: str) -> None:
    assert gate.permit_poll(identity(gate, "a prefix and its group"), group) == FORBIDDEN


def test_takes_of_a_prefix_token_are_bounded_by_it(gate: Gate) -> None:
    """Those of others are left as they are."""
    body = request("layby.worker.take", "mine/")
    assert gate.bounded(identity(gate, "an api key"), body).prefix == "mine/"  # pyright: ignore[reportAttributeAccessIssue]
    for name in ABLE:
        assert gate.bounded(identity(gate, name), body) is body


@pytest.mark.parametrize("groups", [None, "g", {"g": 1}, 7, [], [7, None, ["g"]]])
def test_groups_that_are_no_list_of_names_grant_nothing(gate: Gate, groups: Any) -> None:
    """And break nothing."""
    who = gate.identify(token(**MINE, groups=groups))
    assert isinstance(who, Identity)
    assert gate.permit_poll(who, GROUP) == FORBIDDEN


@pytest.mark.parametrize("prefix", [None, 7, True, [], ["mine/"], {}])
def test_a_prefix_that_is_no_text_is_none(gate: Gate, prefix: Any) -> None:
    """As the protocol says."""
    who = gate.identify(token(prefix=prefix, **GRANTS))
    assert isinstance(who, Identity)
    assert gate.permit(who, "promise.get", request("promise.get", "mine/")) == FORBIDDEN
    assert gate.permit_poll(who, GROUP) == FORBIDDEN


@pytest.mark.parametrize(
    "role", [None, 7, True, [], ["admin"], {"admin": True}, "admins", " admin"]
)
def test_a_role_that_is_not_admin_grants_nothing(gate: Gate, role: Any) -> None:
    who = gate.identify(token(role=role))
    assert isinstance(who, Identity)
    assert gate.permit(who, "promise.search", request("promise.search", "")) == FORBIDDEN


# --- who it is -------------------------------------------------------------------------------


def test_who_was_let_in_may_stay_until_the_token_expires(gate: Gate, clock: ManualClock) -> None:
    """An API key does not expire; a token that hardly does is like one."""
    who = identity(gate, "a prefix")
    assert gate.seconds_left(who) == 60
    clock.advance(59_500)
    assert gate.seconds_left(who) == 0.5
    clock.advance(60_000)
    assert gate.seconds_left(who) == 0
    far = gate.identify(signed({"exp": 2**53, "prefix": ""}))
    assert isinstance(far, Identity)
    for each in (far, identity(gate, "an api key"), auth.ANYONE):
        assert gate.seconds_left(each) == auth.LONGEST_STAY_S


def test_logs_get_a_name_and_no_secret(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """For tokens their subject, for API keys the name in the configuration."""
    with caplog.at_level(logging.DEBUG):
        named = {name: gate.identify(each) for name, each in TOKENS.items()}
    assert named["a prefix"].subject == "ann"  # pyright: ignore[reportAttributeAccessIssue]
    assert named["an api key"].subject == "key:ci"  # pyright: ignore[reportAttributeAccessIssue]
    nameless = gate.identify(signed({"exp": EXP, "sub": 7, "prefix": ""}))
    assert nameless == Identity("a token without sub", prefix="", expires_at=EXP * 1000)
    shown = f"{caplog.text} {named} {gate!r} {vars(gate)} {CONFIG}"
    for secret in (KEY, ADMIN_KEY, *(each for each in TOKENS.values() if each and "." in each)):
        assert secret not in shown


def test_nothing_configured_is_an_open_gate() -> None:
    """Whatever token is sent, as with Resonate."""
    gate = Gate(AuthConfig())
    assert gate.is_open
    for each in TOKENS.values():
        who = gate.identify(each)
        assert isinstance(who, Identity)
        assert all(gate.permit(who, kind, request(kind, "x")) is None for kind in SAMPLES)
        assert gate.permit_poll(who, "any") is None


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        AuthConfig(public_key="none"),
        AuthConfig(public_key=public_pem()),
        AuthConfig(api_keys=CONFIG.api_keys),
    ],
)
def test_anything_configured_shuts_the_gate(config: AuthConfig) -> None:
    gate = Gate(config)
    assert not gate.is_open
    assert gate.identify(None) == UNAUTHORIZED


def test_without_a_public_key_no_token_is_good(clock: ManualClock) -> None:
    """Even where API keys are."""
    gate = Gate(AuthConfig(api_keys=CONFIG.api_keys), clock)
    assert gate.identify(TOKENS["an admin"]) == UNAUTHORIZED
    assert gate.identify(KEY) == Identity("key:ci", prefix="mine/", groups=frozenset({GROUP}))


def test_a_bad_configuration_opens_no_gate() -> None:
    with pytest.raises(UsageError, match=r"auth\.public_key is empty"):
        Gate(AuthConfig(public_key=""))


def test_a_very_long_token_is_not_even_looked_at(gate: Gate) -> None:
    """Whatever stands in it."""
    assert gate.identify(token(role="admin", padding="x" * 8_192)) == UNAUTHORIZED
    assert gate.identify("\ud800" * 20) == UNAUTHORIZED


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Bearer", None),
        ("Bearer ", None),
        ("Basic abc", None),
        ("abc", None),
        ("", None),
        (None, None),
    ],
)
def test_the_token_in_a_header(header: str | None, found: str | None) -> None:
    """Of `GET /poll`."""
    assert bearer(header) == found


# --- what is remembered ----------------------------------------------------------------------


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every token whose signature is looked at."""
    seen: list[str] = []
    verify = TokenVerifier.verify

    def counting(self: TokenVerifier, token: str, now: int) -> Any:
        seen.append(token)
        return verify(self, token, now)

    monkeypatch.setattr(TokenVerifier, "verify", counting)
    return seen


def test_a_signature_is_verified_once(gate: Gate, verified: list[str]) -> None:
    """Bad ones each time: nothing is kept for them."""
    good, bad = token(**MINE), token(which=1)
    assert len({str(gate.identify(good)) for _ in range(5)}) == 1
    assert [gate.identify(bad) for _ in range(3)] == [UNAUTHORIZED] * 3
    assert verified == [good, bad, bad, bad]


def test_what_is_remembered_expires_with_its_token(
    gate: Gate, clock: ManualClock, verified: list[str]
) -> None:
    """At the same millisecond."""
    good = token(**MINE)
    clock.set(EXP * 1000 - 1)
    assert isinstance(gate.identify(good), Identity)
    assert isinstance(gate.identify(good), Identity)
    clock.advance(1)
    assert gate.identify(good) == UNAUTHORIZED
    assert len(verified) == 2
    assert len(gate._remembered._by_digest) == 0


def test_only_so_many_are_remembered(
    gate: Gate, verified: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one not used for longest goes first."""
    monkeypatch.setattr(auth, "_REMEMBERED", 2)
    a, b, c = (token(prefix=each) for each in "abc")
    for each in (a, b, a, c, a, b):
        gate.identify(each)
    assert verified == [a, b, c, b]
    assert len(gate._remembered._by_digest) == 2


def test_no_token_is_kept_in_memory(gate: Gate) -> None:
    """Only its digest."""
    good = token(**MINE)
    gate.identify(good)
    assert all(len(digest) == 32 for digest in gate._remembered._by_digest)
    assert good not in str(vars(gate._remembered))
