"""What others have named cannot control the terminal of whoever looks at it."""

import pytest

from layby.cli import showing
from layby.cli.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run/a\x1b[2J\x1b]0;x\x07", "run/a\\x1b[2J\\x1b]0;x\\x07"),
        ("a\rb\x08\x9b31m", "a\\rb\\x08\\x9b31m"),
        ("a\u202eb\u2066", "a\\u202eb\\u2066"),
        ("é ü 漢字 👩‍💻 a\tb\nc", "é ü 漢字 👩‍💻 a\tb\nc"),
    ],
)
def test_it_is_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_wherever_a_command_shows_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = "a\x1b[31mb"
    showing.print_line(text)
    showing.tell_aside(text)
    showing.print_table(["id"], [[showing.plain(text)], [showing.bold(text)], [showing.dim(text)]])
    told = capsys.readouterr()
    assert (told.out + told.err).count("a\\x1b[31mb") == 5
    assert "\x1b" not in told.out + told.err
