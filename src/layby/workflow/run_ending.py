"""What a task that cleans up is told about the run it cleans up after."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

OutcomeStatus = Literal["Completed", "Failed", "Skipped", "Cancelled"]
RunState = Literal["Completed", "Failed", "Cancelled"]


class RunEnding(Struct, frozen=True):
    """How a run ended, as far as its tasks without `rule="finally"` are concerned."""

    state: RunState
    """`Cancelled`: somebody cancelled the run. `Failed`: a task of it failed or was cancelled, or
    its deadline passed. `Completed`: neither; it has its result when the clean-up succeeds.
    """
    outcomes: Mapping[str, OutcomeStatus] = {}
    """How each of those tasks ended, in the order of the workflow."""
    failed: Mapping[str, str] = {}
    """The errors of those that failed or were cancelled."""
    by: str = ""
    """Who cancelled the run, if that is known."""
    reason: str = ""
    """Why the run was cancelled, or that its deadline passed."""
