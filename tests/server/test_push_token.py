"""Which hosts get the token of pushes: those that are listed, however an address is written."""

import pytest
from yarl import URL

from layby.server.push_token import TokenHosts, parse_token_host


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("hooks.example.org", "https://hooks.example.org/x?y"),
        ("hooks.example.org", "http://hooks.example.org:8080/"),
        ("Hooks.Example.org", "http://HOOKS.example.org./"),
        ("hooks.example.org:443", "https://hooks.example.org/"),
        ("hooks.example.org:8080", "http://me:secret@hooks.example.org:8080/"),
        ("https://hooks.example.org", "https://hooks.example.org:8443/"),
        ("*.example.org", "https://a.b.example.org/"),
        ("*.example.org:443", "https://a.example.org/"),
        ("xn--bcher-kva.example.org", "https://bücher.example.org/"),
        ("localhost", "http://localhost/"),
        ("10.0.0.5:8080", "http://10.0.0.5:8080/"),
        ("[::1]:8080", "http://[0:0:0:0:0:0:0:1]:8080/"),
        ("[0::1]", "http://[::1]/"),
        ("*", "http://anybody.example.com/"),
    ],
)
def test_a_listed_host_gets_the_token(listed, url):
    assert URL(url) in TokenHosts(["other.example.net", listed])


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("hooks.example.org", "https://evil.example.com/hooks.example.org"),
        ("hooks.example.org", "https://hooks.example.org@evil.example.com/"),
        ("hooks.example.org", "https://evil.example.com/#@hooks.example.org"),
        ("hooks.example.org", "https://hooks.example.org.evil.example.com/"),
        ("hooks.example.org", "https://xhooks.example.org/"),
        ("hooks.example.org", "https://hooks%2Eexample.org/"),
        ("hooks.example.org:443", "https://hooks.example.org:8443/"),
        ("hooks.example.org:443", "http://hooks.example.org/"),
        ("https://hooks.example.org", "http://hooks.example.org:443/"),
        ("*.example.org", "https://example.org/"),
        ("*.example.org", "https://evilexample.org/"),
        ("10.0.0.5", "http://10.0.0.50/"),
        ("a.b", "https://axb/"),
    ],
)
def test_others_do_not(listed, url):
    """Nor does one that looks alike, at another port, or where all can read along."""
    assert URL(url) not in TokenHosts([listed])


def test_nobody_gets_it_by_default():
    assert URL("https://hooks.example.org/") not in TokenHosts(())


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "a:",
        "a:0",
        "a:123456",
        "::1",
        "[x]",
        "ftp://a",
        "a/b",
        "*a.org",
        "a.*",
        "a b",
    ],
)
def test_what_is_no_host_is_refused(text):
    assert parse_token_host(text) is None
