"""What comes back from a child process."""

import pytest

from layby import ContextError
from layby.workflow.child_result import ChildResult


def test_what_can_be_encoded_comes_back_encoded() -> None:
    assert ChildResult.of(lambda: b"7").checked() == b"7"


def test_what_is_refused_in_the_child_is_raised_in_the_worker() -> None:
    """An error of the function itself is another matter: it is not caught here."""

    def refuse() -> bytes:
        raise ContextError("the result is a generator")

    def fail() -> bytes:
        raise ValueError("a bug")

    refused = ChildResult.of(refuse)
    with pytest.raises(ContextError, match="is a generator"):
        refused.checked()
    with pytest.raises(ValueError, match="a bug"):
        ChildResult.of(fail)
