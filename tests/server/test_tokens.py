"""Signatures and times of JSON Web Tokens: the key decides what counts, never the token."""

import base64
import hashlib
import hmac
import json
import logging
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import OKPAlgorithm

from layby.errors import UsageError
from layby.server.tokens import Claims, TokenVerifier, load_key
from tests.helpers.keys import ALGORITHMS, private_key, private_pem, public_pem, signed

NOW = 1_000_000_000_000
EXP = NOW // 1000 + 60
GOOD: dict[str, Any] = {"sub": "ann", "exp": EXP}


def verifier(kind: str = "ed25519", issuer: str | None = None, audience: str | None = None):
    return TokenVerifier(public_pem(kind), issuer, audience)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def raw_token(header: Any, claims: Any, signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(map(b64, parts))


EVERY_ALGORITHM = [(kind, alg) for kind, algs in ALGORITHMS.items() for alg in algs]


@pytest.mark.parametrize(("kind", "algorithm"), EVERY_ALGORITHM)
def test_each_kind_of_key_verifies_its_algorithms(kind: str, algorithm: str) -> None:
    """RSA, EC on P-256 and P-384, Ed25519."""
    token = signed(GOOD, kind, algorithm)
    assert verifier(kind).verify(token, NOW) == Claims(GOOD, EXP * 1000)


@pytest.mark.parametrize(("kind", "algorithm"), EVERY_ALGORITHM)
@pytest.mark.parametrize("configured", list(ALGORITHMS))
def test_a_token_of_another_key_is_refused(kind: str, algorithm: str, configured: str) -> None:
    """Of another kind, or another one of the same kind."""
    token = signed(GOOD, kind, algorithm, which=1)
    assert verifier(configured).verify(token, NOW) is None


@pytest.mark.parametrize("kind", list(ALGORITHMS))
@pytest.mark.parametrize(("algorithm", "digest"), [("HS256", "sha256"), ("HS512", "sha512")])
def test_the_public_key_is_no_shared_secret(kind: str, algorithm: str, digest: str) -> None:
    """The old trick: sign with HMAC, and with what everybody may know."""
    header = {"typ": "JWT", "alg": algorithm}
    for secret in (public_pem(kind), public_pem(kind).strip()):
        unsigned = raw_token(header, GOOD).rpartition(".")[0]
        signature = hmac.new(secret.encode(), unsigned.encode(), getattr(hashlib, digest)).digest()
        assert verifier(kind).verify(f"{unsigned}.{b64(signature)}", NOW) is None


@pytest.mark.parametrize("kind", list(ALGORITHMS))
@pytest.mark.parametrize("algorithm", ["none", "nOnE", "NONE", "", None, [], {}, 7])
def test_unsigned_tokens_are_refused(kind: str, algorithm: Any) -> None:
    """However they say so."""
    for signature in (b"", b"x"):
        token = raw_token({"typ": "JWT", "alg": algorithm}, GOOD, signature)
        assert verifier(kind).verify(token, NOW) is None


@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_a_good_header_without_a_good_signature_is_refused(kind: str) -> None:
    """Cut off, empty, or of other claims."""
    token = signed(GOOD, kind)
    head, claims, signature = token.split(".")
    other = b64(json.dumps(GOOD | {"role": "admin"}).encode())
    for bad in (
        f"{head}.{claims}.",
        f"{head}.{claims}",
        f"{head}.{claims}.{signature[:-8]}",
        f"{head}.{other}.{signature}",
        f"{head}..{signature}",
        f"{token}.{signature}",
    ):
        assert verifier(kind).verify(bad, NOW) is None


def test_a_key_inside_the_token_counts_nothing() -> None:
    """Nor an address to fetch one from."""
    own = OKPAlgorithm.to_jwk(private_key(which=1).public_key(), as_dict=True)
    headers = {"jwk": own, "jku": "http://127.0.0.1:1/keys", "kid": "../../dev/null"}
    token = jwt.encode(GOOD, private_key(which=1), "EdDSA", headers=headers)
    assert verifier().verify(token, NOW) is None


def test_a_token_ends_at_its_exp_and_not_before() -> None:
    """To the millisecond."""
    token = signed(GOOD)
    assert verifier().verify(token, EXP * 1000 - 1) is not None
    assert verifier().verify(token, EXP * 1000) is None
    assert verifier().verify(token, EXP * 1000 + 1) is None


def test_a_token_begins_at_its_nbf() -> None:
    """When it has one."""
    token = signed(GOOD | {"nbf": EXP - 10})
    assert verifier().verify(token, (EXP - 10) * 1000 - 1) is None
    assert verifier().verify(token, (EXP - 10) * 1000) is not None
    assert verifier().verify(signed(GOOD | {"nbf": "soon"}), NOW) is None


@pytest.mark.parametrize(
    "exp", [None, "", str(EXP), "never", True, [EXP], {}, float("nan"), float("inf"), -1, 0]
)
def test_exp_must_be_there_and_a_time_to_come(exp: Any) -> None:
    """Null counts as absent."""
    assert verifier().verify(signed(GOOD | {"exp": exp}), NOW) is None
    assert verifier().verify(signed({"sub": "ann"}), NOW) is None


@pytest.mark.parametrize("exp", [EXP + 0.5, 10**14, 10**400])
def test_odd_but_good_times_are_read(exp: float) -> None:
    """Fractions, and years nobody will see."""
    assert verifier().verify(signed(GOOD | {"exp": exp}), NOW) is not None


def test_only_times_of_our_own_clock_count() -> None:
    """An `iat` ahead of us is not asked about; `sub` and `jti` may be anything."""
    claims = GOOD | {"iat": 10**12, "sub": 7, "jti": 7}
    assert verifier().verify(signed(claims), NOW) is not None


@pytest.mark.parametrize(
    ("claim", "is_good"),
    [
        ("layby", True),
        (["other", "layby"], True),
        (["layby"], True),
        ("layb", False),
        ("layby2", False),
        ([], False),
        (["other"], False),
        ({"layby": 1}, False),
        (7, False),
        (None, False),
    ],
)
def test_the_audience_is_a_text_or_a_list(claim: Any, is_good: bool) -> None:
    """It must hold what is configured."""
    verified = verifier(audience="layby").verify(signed(GOOD | {"aud": claim}), NOW)
    assert (verified is not None) == is_good


@pytest.mark.parametrize(
    ("claim", "is_good"), [("us", True), ("u", False), ("them", False), ("", False)]
)
def test_the_issuer_is_compared_whole(claim: str, is_good: bool) -> None:
    """Not as a part of another text."""
    verified = verifier(issuer="us").verify(signed(GOOD | {"iss": claim}), NOW)
    assert (verified is not None) == is_good


def test_issuer_and_audience_are_required_only_when_configured() -> None:
    """Then they must be there."""
    assert verifier(issuer="us").verify(signed(GOOD), NOW) is None
    assert verifier(audience="layby").verify(signed(GOOD), NOW) is None
    named = signed(GOOD | {"iss": "them", "aud": "elsewhere"})
    assert verifier().verify(named, NOW) is not None


def test_none_takes_any_signature_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Times, issuer and audience are checked all the same."""
    with caplog.at_level(logging.WARNING, "layby.server.tokens"):
        unchecked = TokenVerifier("none", "us", "layby")
    assert "NOT checked" in caplog.text
    good = GOOD | {"iss": "us", "aud": "layby"}
    for token in (
        signed(good, "rsa"),
        signed(good),
        raw_token({"alg": "none"}, good),
        raw_token({"alg": "HS256"}, good, b"nonsense"),
    ):
        assert unchecked.verify(token, NOW) is not None
        assert unchecked.verify(token, EXP * 1000) is None
    for bad in ({"exp": None}, {"iss": "them"}, {"aud": "them"}):
        assert unchecked.verify(raw_token({"alg": "none"}, good | bad), NOW) is None


def test_a_key_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    """Only its absence does."""
    verifier()
    assert caplog.text == ""


# --- what is no token ----------------------------------------------------------------------


@given(st.text(max_size=300) | st.lists(st.text(max_size=40), max_size=5).map(".".join))
def test_any_text_is_refused_and_breaks_nothing(text: str) -> None:
    """With a key and without."""
    assert verifier().verify(text, NOW) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        name: json_values | st.sampled_from(["EdDSA", "none", "JWT", ["b64"], False])
        for name in ("alg", "typ", "kid", "crit", "b64", "jwk")
    },
)


@given(HEADERS | json_values, json_values, st.binary(max_size=70))
def test_odd_headers_are_refused_and_break_nothing(header: Any, claims: Any, sig: bytes) -> None:
    """Whatever stands in them."""
    assert verifier().verify(raw_token(header, claims, sig), NOW) is None


@pytest.mark.parametrize("text", ["[" * 5_000, '{"a":' * 1_000, "9" * 5_000, "\0", "\ud800"])
def test_deep_and_large_json_is_refused(text: str) -> None:
    """In the header, where nothing is verified yet, and in the claims."""
    raw = b64(text.encode(errors="surrogatepass"))
    good = b64(b'{"alg":"EdDSA"}')
    for token in (f"{raw}.{raw}.{raw}", f"{good}.{raw}.{raw}"):
        assert verifier().verify(token, NOW) is None
        assert TokenVerifier("none", None, None).verify(token, NOW) is None


def test_a_refusal_is_logged_without_the_token(caplog: pytest.LogCaptureFixture) -> None:
    """The reason helps whoever runs the server; the token would help whoever reads the log."""
    token = signed(GOOD, which=1)
    with caplog.at_level(logging.DEBUG):
        verifier().verify(token, NOW)
        verifier().verify(signed(GOOD), EXP * 1000)
        verifier().verify("sesame", NOW)
    assert "InvalidSignatureError" in caplog.text
    assert "not valid at this time" in caplog.text
    for secret in (*token.split("."), "sesame"):
        assert secret not in caplog.text


def test_who_tries_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each reason; a disk full of refusals would be an attack by itself."""
    ours = verifier()
    with caplog.at_level(logging.DEBUG):
        for _ in range(100):
            assert ours.verify(signed(GOOD, which=1), NOW) is None
            assert ours.verify("nonsense", NOW) is None
    assert len(caplog.records) == 2


# --- keys that cannot be used ----------------------------------------------------------------


@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_a_key_may_stand_in_a_file(kind: str, tmp_path: Path) -> None:
    """Its path in place of its text."""
    path = tmp_path / "layby.pem"
    path.write_text(public_pem(kind))
    assert load_key(str(path))[1] == ALGORITHMS[kind]
    assert TokenVerifier(str(path), None, None).verify(signed(GOOD, kind), NOW) is not None


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("no/such.pem", r"auth.public_key \('no/such.pem'\) .* No such file"),
        (".", r"auth.public_key \('.'\) .* directory"),
        ("None", r"auth.public_key \('None'\) .* No such file"),
        ("a\0b", r"auth.public_key .* neither PEM text nor a file"),
        (
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
            "is not a public key in PEM",
        ),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "is not a public key"),
    ],
)
def test_a_key_that_cannot_be_read_is_named(key: str, why: str) -> None:
    """What is wrong, and where it was looked for."""
    with pytest.raises(UsageError, match=why):
        load_key(key)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("short rsa", "RSA key of 1024 bits"),
        ("p521", "an EC key on secp521r1"),
        ("ed448", "Ed448PublicKey"),
    ],
)
def test_a_key_that_no_algorithm_fits_is_named(kind: str, why: str) -> None:
    """With those that would do."""
    with pytest.raises(UsageError, match=why):
        load_key(public_pem(kind))


def test_a_private_key_is_refused_and_not_repeated(tmp_path: Path) -> None:
    """It has no business on a server that only verifies."""
    pem = private_pem()
    path = tmp_path / "private.pem"
    path.write_text(pem)
    for key in (pem, str(path)):
        with pytest.raises(UsageError, match="is a private key") as caught:
            load_key(key)
        assert pem.splitlines()[1] not in str(caught.value)


def test_a_key_without_its_frame_is_not_repeated() -> None:
    """It was meant as a key, not as a path."""
    body = "\n".join(private_pem("rsa").splitlines()[1:-1])
    for key in (body, body.replace("\n", "")):
        with pytest.raises(UsageError, match="a long text") as caught:
            load_key(key)
        assert body[:40] not in str(caught.value)
