"""What users hold: a Runner that starts runs and executes them, and the runs it returns."""

from layby.core.replies import LimitStanding
from layby.runner.blocking_runner import BlockingRunner, run
from layby.runner.retention import Retention
from layby.runner.run import Run
from layby.runner.runner import Runner
from layby.runner.schedule import Schedule
from layby.runner.settling import Settlement

__all__ = [
    "BlockingRunner",
    "LimitStanding",
    "Retention",
    "Run",
    "Runner",
    "Schedule",
    "Settlement",
    "run",
]
