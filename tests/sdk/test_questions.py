"""A workflow asks and somebody answers: the human in the loop."""

import pytest

from tests.sdk.conftest import Peers
from tests.sdk.peers import Peer

pytestmark = pytest.mark.sdk


def test_an_answer_by_the_bare_protocol(peers: Peers):
    """As a web page or curl would send it."""
    worker, question = asked(peers)
    peers.server.settle(question, "resolved", {"approved": True})
    assert worker.result("asks") == {"approved": True}


def test_an_answer_by_the_sdk(peers: Peers):
    """From another process."""
    worker, question = asked(peers)
    peers.client().order("resolve", id=question, value="go on")
    assert worker.result("asks") == "go on"


def test_a_refusal(peers: Peers):
    """It is raised where the workflow waits, and nobody catches it there."""
    worker, question = asked(peers)
    peers.client().order("reject", id=question, message="not today")
    assert worker.hear("error", id="asks")["message"] == "not today"


def test_a_question_that_nobody_answers(peers: Peers):
    """Its deadline wakes the workflow, though no task belongs to it."""
    worker = peers.worker()
    worker.run("asks", "asks", 600)
    question = worker.hear("asks")["promise"]
    worker.hear("error", id="asks")
    answer = peers.server.ask("promise.get", id=question)
    assert answer.data["promise"]["state"] == "rejected_timedout"


def asked(peers: Peers) -> tuple[Peer, str]:
    """A worker whose workflow waits in the store, and what it waits for."""
    worker = peers.worker()
    worker.run("asks", "asks", None)
    question = worker.hear("asks")["promise"]
    peers.server.await_task("asks", "suspended")
    return worker, question
