"""Which addresses a message could be sent to (PROTOCOL.md, section 4.3)."""

import pytest

from layby.core.address import is_valid


@pytest.mark.parametrize(
    "address",
    [
        *("poll://any@g", "poll://any@g/w", "poll://uni@g", "poll://uni@G/W?x=y", "poll://any@g h"),
        *("http://h", "https://h:443/a b?c=d", "http://user@h/", "http://[::1]:80/", "http://ü/"),
        *("gcps://p/t", "gcps://p/t/u", "bash://", "bash://docker/i", "bash://tensorlake/i"),
    ],
)
def test_a_message_can_go_to_a_group_a_url_a_topic_or_a_script(address: str) -> None:
    """Whether anybody is there is another question."""
    assert is_valid(address)


@pytest.mark.parametrize(
    "address",
    [
        *("", "w", "any@g", "://", "local://any@g", "nats://any@g", "ftp://h/"),
        *("poll://", "poll://g", "poll://@g", "poll://all@g", "poll://any@", "poll://uni@/w"),
        *("gcps://", "gcps://p", "gcps://p/", "gcps:///t", "bash:", "bash://i", "bash://docker/"),
    ],
)
def test_what_names_nobody_is_invalid(address: str) -> None:
    """A scheme nobody knows, or nobody in particular."""
    assert not is_valid(address)


@pytest.mark.parametrize(
    "address",
    [
        *("http:", "http://", "https:///x", "http://?x", "http://:80/", "http://user@/"),
        *("http://h:x/", "http://h:99999/", "http://[::1/", "http://a b/"),
    ],
)
def test_a_url_has_a_host_and_a_port_that_can_be_one(address: str) -> None:
    """Refused when it is given: later the message could only be dropped."""
    assert not is_valid(address)
