from layby.executors import CancellationSource, CancellationToken


def test_a_token_of_its_own_is_never_requested():
    """It is the neutral argument."""
    token = CancellationToken()
    assert not token.cancel_requested()
    assert token.observed_count() == 0


def test_all_tokens_of_a_source_see_the_request():
    """The flag is shared, whenever the token was made."""
    source = CancellationSource()
    before = source.token()
    assert not before.cancel_requested()
    source.request_cancel()
    assert source.cancel_requested()
    assert before.cancel_requested()
    assert source.token().cancel_requested()


def test_seeing_a_request_is_counted_and_looking_is_not():
    """observed_count moves only when cancel_requested answers yes."""
    source = CancellationSource()
    token = source.token()
    token.cancel_requested()
    source.request_cancel()
    assert token.requested()
    assert token.observed_count() == 0
    token.cancel_requested()
    token.cancel_requested()
    assert token.observed_count() == 2


def test_a_predicate_can_be_the_flag():
    """from_callback asks every time."""
    answers = iter([False, True])
    token = CancellationToken.from_callback(lambda: next(answers))
    assert not token.cancel_requested()
    assert token.cancel_requested()
