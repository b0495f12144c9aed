"""What a server is told about tokens: mistakes are found at the start, secrets are not shown."""

import hashlib
from typing import Any

import msgspec
import pytest
from rich.console import Console

from layby.errors import UsageError
from layby.server.auth_config import ApiKey, AuthConfig, check, new_api_key

SECRET = "sesame-sesame-sesame"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def problems(**given: Any) -> str:
    with pytest.raises(UsageError) as caught:
        check(AuthConfig(**given))
    return str(caught.value)


def key_problems(**given: Any) -> str:
    given = {"name": "ci", "key": SECRET, "prefix": "p"} | given
    return problems(api_keys=(ApiKey(**given),))


def test_a_whole_configuration_is_read_from_plain_values() -> None:
    """As a TOML file gives them."""
    written = {
        "public_key": "none",
        "issuer": "us",
        "audience": "layby",
        "api_keys": [
            {"name": "ops", "key": SECRET, "role": "Admin"},
            {"name": "ci", "key_sha256": "0" * 64, "prefix": "run/ci-", "groups": ["g"]},
            {"name": "all", "key_sha256": "1" * 64, "prefix": ""},
        ],
    }
    config = msgspec.convert(written, AuthConfig)
    check(config)
    assert [key.is_admin for key in config.api_keys] == [True, False, False]
    assert config.api_keys[0].digest.hex() == DIGEST


def test_nothing_is_a_good_configuration() -> None:
    """Everybody may do everything: that is for the server to warn of."""
    check(AuthConfig())


@pytest.mark.parametrize("name", ["public_key", "issuer", "audience"])
def test_an_empty_text_is_a_mistake(name: str) -> None:
    """An unset variable of the environment must not open the door."""
    given = {"public_key": "none"} | {name: ""}
    assert problems(**given) == f"auth.{name} is empty: give a value, or remove it"


@pytest.mark.parametrize("name", ["issuer", "audience"])
def test_what_protects_nothing_is_a_mistake(name: str) -> None:
    """Somebody believes that it does."""
    why = f"auth.{name} protects nothing without auth.public_key"
    assert why in problems(**{name: "x"})
    assert why in problems(**{name: "x"}, api_keys=(ApiKey("a", key=SECRET, prefix=""),))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": ""}, "name is empty"),
        ({"key": None}, "give either key or key_sha256"),
        ({"key_sha256": DIGEST}, "give either key or key_sha256"),
        ({"key": ""}, "shorter than 16 characters"),
        ({"key": "sesame"}, "shorter than 16 characters"),
        ({"key": None, "key_sha256": ""}, "64 hexadecimal digits"),
        ({"key": None, "key_sha256": DIGEST[1:]}, "64 hexadecimal digits"),
        ({"key": None, "key_sha256": "g" * 64}, "64 hexadecimal digits"),
        ({"key": None, "key_sha256": DIGEST + "\n"}, "64 hexadecimal digits"),
        ({"role": "root"}, "unknown role 'root'"),
        ({"prefix": None}, "allows nothing"),
    ],
)
def test_a_bad_key_is_named_by_its_place_and_name(given: Any, why: str) -> None:
    """And nothing of it is shown."""
    found = key_problems(**given)
    assert found.startswith(f"auth.api_keys[0] ({given.get('name', 'ci')!r}): ")
    assert why in found
    assert "sesame" not in found
    assert DIGEST[1:] not in found


def test_all_mistakes_are_told_at_once() -> None:
    """Nobody likes to start a server five times."""
    keys = (ApiKey("a"), ApiKey("b", key=SECRET, role="root"))
    found = problems(public_key="", api_keys=keys)
    for each in ("auth.public_key is empty", "[0] ('a'): give either", "[1] ('b'): unknown role"):
        assert each in found


def test_two_keys_need_two_names_and_two_secrets() -> None:
    """Logs show the name; rights hang on the secret."""
    same_name = (ApiKey("a", key=SECRET, prefix="p"), ApiKey("a", key=SECRET * 2, prefix="q"))
    assert "2 keys are named 'a'" in problems(api_keys=same_name)
    same_key = (ApiKey("a", key=SECRET, prefix="p"), ApiKey("b", key_sha256=DIGEST, role="admin"))
    assert "'a' and 'b' are the same key" in problems(api_keys=same_key)


@pytest.mark.parametrize("written", [{"publickey": "none"}, {"api_keys": [{"name": "a", "k": 1}]}])
def test_misspelt_settings_are_refused(written: Any) -> None:
    """A setting nobody reads protects nothing."""
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert(written, AuthConfig)


def test_secrets_are_not_shown() -> None:
    """By repr, str, format or rich."""
    key = ApiKey("ci", key=SECRET, prefix="p")
    hashed = ApiKey("cd", key_sha256=DIGEST, prefix="p")
    config = AuthConfig(public_key="-----BEGIN PRIVATE KEY-----", api_keys=(key, hashed))
    console = Console(width=500)
    with console.capture() as capture:
        console.print(config, key, [hashed])
    shown = [repr(config), str(key), f"{hashed}", f"{[config]!r}", capture.get()]
    for text in shown:
        assert "sesame" not in text
        assert DIGEST not in text
        assert "PRIVATE" not in text
    assert "'ci'" in repr(config)


def test_new_keys_are_long_and_different() -> None:
    """And the digest is that of the key, as the configuration wants it."""
    (key, digest), (other, _) = new_api_key(), new_api_key()
    assert key != other
    assert len(key) >= 40
    assert "." not in key
    assert hashlib.sha256(key.encode()).hexdigest() == digest
    check(AuthConfig(api_keys=(ApiKey("a", key=key, role="admin"),)))
    assert ApiKey("a", key=key).digest == ApiKey("a", key_sha256=digest.upper()).digest
