"""Errors that end a command."""

from layby.errors import LaybyError


class Refused(LaybyError):
    """It ran, and the answer is no."""

    exit_code = 1
