"""Which web pages are strangers, by what browsers say of them."""

import pytest

from layby.server.cross_origin import is_cross_origin

URL = "https://layby.example.org"
LISTED = ("https://app.example.org",)


def is_refused(origin: str | None, host: str = "127.0.0.1:8001", site: str | None = None) -> bool:
    headers = {b"host": host, b"origin": origin, b"sec-fetch-site": site}
    sent = [(name, value.encode()) for name, value in headers.items() if value is not None]
    return is_cross_origin(sent, LISTED, URL)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://app.example.org", "127.0.0.1:8001"),
        ("https://layby.example.org", "upstream"),
        ("http://127.0.0.1:8001", "127.0.0.1:8001"),
        ("http://localhost:8001", "localhost:8001"),
        ("http://a.localhost:8001", "a.localhost:8001"),
        ("http://[::1]:8001", "[::1]:8001"),
        ("http://10.0.0.5:8001", "10.0.0.5:8001"),
    ],
)
def test_listed_pages_and_our_own_are_none(origin: str, host: str) -> None:
    assert not is_refused(origin, host)
    assert not is_refused(origin, host, "cross-site")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example.com", "127.0.0.1:8001"),
        ("http://127.0.0.1:3000", "127.0.0.1:8001"),
        ("http://localhost:8001", "127.0.0.1:8001"),
        ("http://evil.example.com:8001", "evil.example.com:8001"),
        ("http://app.example.org", "127.0.0.1:8001"),
        ("https://app.example.org.evil.example.com", "127.0.0.1:8001"),
        ("null", "null"),
        ("", ""),
        ("file://", "127.0.0.1:8001"),
        ("http://[", "["),
    ],
)
def test_all_others_are(origin: str, host: str) -> None:
    """Also one whose name was made to lead here, and so is the host that is asked for."""
    assert is_refused(origin, host)
    assert is_refused(origin, host, "same-origin")


def test_who_is_no_browser_is_none() -> None:
    assert not is_refused(None)
    assert not is_cross_origin([], (), URL)


def test_a_server_that_does_not_know_its_address_yet_owns_no_page() -> None:
    assert is_cross_origin([(b"origin", b"null")], (), "")


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_without_an_origin_the_site_says_it(site: str) -> None:
    assert not is_refused(None, site=site)
    assert is_refused(None, site="cross-site")
    assert is_refused(None, site="same-site")


def test_all_may_be_listed() -> None:
    assert not is_cross_origin([(b"origin", b"null")], ("*",), URL)
