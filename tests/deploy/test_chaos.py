"""Whatever happens to servers, workers, PostgreSQL and the connections between them, all ends well.

`make chaos` runs it with 2,000 runs; `ARGS="-k seed3"` another seed.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.chaos import LATE_S, Chaos, TroubledTopology
from tests.runner.test_chaos import (
    assert_all_ended_well,
    assert_no_try_ran_twice,
    assert_recorded_steps_were_not_done_again,
    wait_for_work,
)

PORTION = 50
PACE_S = 0.03
"""Between two starts, so that there is work for as long as there is trouble."""


@pytest.mark.parametrize(
    ("seed", "runs", "rounds"),
    [
        pytest.param(1, 150, 1, id="small", marks=pytest.mark.shared),
        *[pytest.param(x, 2_000, 5, id=f"seed{x}", marks=pytest.mark.slow) for x in range(2, 5)],
    ],
)
@pytest.mark.timeout(900)
def test_everything_ends_well(
    seed: int,
    runs: int,
    rounds: int,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
):
    """All runs finish with the right results, what was recorded is not done again, and timers of a
    dead server are not late.
    """
    with TroubledTopology(tmp_path) as found, found.client(runs, seed, PACE_S) as client:
        client.hear("started")
        chaos = Chaos(found, seed, print)
        chaos.disturb(rounds, lambda: wait_for_work(found, 20, client))
        for number in range(PORTION, runs + 1, PORTION):  # as long as it goes on, it may take long
            client.hear(f"finished {number}")
            chaos.say(f"{number} runs have ended")
        client.hear("done")
        assert [line for line in client.said if line.startswith("wrong")] == []
        effects, state = found.effects(), found.state()
    assert_all_ended_well(state, runs)
    assert_no_try_ran_twice(effects)
    assert_recorded_steps_were_not_done_again(effects, state)
    assert max(chaos.lateness_s) < LATE_S
    again = sum(each.number > 1 for each in effects)
    late = max(chaos.lateness_s)
    record_property("said", f"{len(effects)} effects, {again} of later tries; {late:.2f} s late")
