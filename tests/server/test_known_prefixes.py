"""Under which prefix an id is: the longest prefix of a token that covers it."""

from hypothesis import given
from hypothesis import strategies as st

from layby.server import known_prefixes as module
from layby.server.auth import Gate
from layby.server.auth_config import ApiKey, AuthConfig
from layby.server.known_prefixes import NOBODY, KnownPrefixes

NAMES = st.text("ab.", max_size=4)


@given(st.lists(st.one_of(st.none(), NAMES)), NAMES)
def test_the_longest_prefix_that_covers_it(given_: list[str | None], promise_id: str) -> None:
    prefixes = KnownPrefixes()
    for each in given_:
        prefixes.note(each)
    covering = [each for each in given_ if each and promise_id.startswith(each)]
    assert prefixes.of(promise_id) == max(covering, key=len, default=NOBODY)


def test_only_so_many_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    prefixes = KnownPrefixes()
    for each in ("a.", "bb.", "a.", "ccc."):
        prefixes.note(each)
    assert [prefixes.of(each) for each in ("a.1", "bb.1", "ccc.1")] == ["a.", NOBODY, "ccc."]


def test_api_keys_are_known_from_the_start() -> None:
    key = ApiKey(name="k", key="k" * 32, prefix="acme.")
    assert Gate(AuthConfig(api_keys=(key,))).prefixes.of("acme.order") == "acme."
