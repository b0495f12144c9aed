"""What a function has returned in a child process: encoded there, since it may not be sendable."""

from collections.abc import Callable

from msgspec import Struct

from layby.errors import ContextError


class ChildResult(Struct, frozen=True):
    encoded: bytes = b"null"
    refused: str = ""
    """Why it is not JSON, or not to be stored."""

    @classmethod
    def of(cls, encode: Callable[[], bytes]) -> "ChildResult":
        try:
            return cls(encode())
        except ContextError as error:
            return cls(refused=str(error))

    def checked(self) -> bytes:
        """Encoded; raises in the worker what was refused in the child."""
        if self.refused:
            raise ContextError(self.refused)
        return self.encoded
