"""Texts of others on a terminal: they are shown, and never obeyed."""

import re
from typing import Final

_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters but for tab and line break, and those that turn the order of letters round."""


def printable(text: str) -> str:
    """Ids, names and reasons come from whoever may create a promise."""
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)
