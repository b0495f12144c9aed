"""Errors that end a command."""

from layby.errors import LaybyError


class Refused(LaybyError):
    """It ran, and the answer is no: exit code 1."""


class AccessDenied(LaybyError):
    """The server does not accept the token, or does not allow this."""
