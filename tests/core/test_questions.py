"""Who asks: the task that an approval or a token is below, and nobody else."""

import pytest

from layby.core import commands as c
from layby.core.questions import APPROVAL, ASKER, asker_of, needed_by
from tests.helpers.worlds import World


@pytest.mark.parametrize(
    ("promise_id", "is_asked"),
    [
        ("run/a:x.c.approval.1", True),
        ("run/a:x.approval", True),
        ("run/a:xy", False),
        ("run/b:x.c.approval.1", False),
        ("run/a:x", False),
    ],
)
def test_nobody_asks_in_the_name_of_a_task_of_others(
    world: World, promise_id: str, *, is_asked: bool
) -> None:
    """A prefix covers the ids of promises, not what their tags say."""
    tags = {APPROVAL: "true", ASKER: "run/a:x"}
    promise = world.ok(c.CreatePromise(id=promise_id, timeout_at=10, tags=tags)).promise
    asker = "run/a:x" if is_asked else None
    assert (asker_of(promise), needed_by(promise)) == (asker, asker)
    answer = c.AnswerApproval(id=promise_id, approved=True)
    assert world.send(answer).is_ok == is_asked
