"""One pure transition: rows and a command in, a reply and a draft out.

Rule 1: everything that decides about state lives in this package and nowhere else.
Rule 2: nothing here reads a clock, draws a random number, does I/O or raises for a refusal.
Rule 3: a step reads only rows its command declared (`footprint`) plus one hop.
A step is one transaction; the engine commits drafts, alone or many together, with equal result.
"""

from layby.core import strict, validate
from layby.core.draft import Draft
from layby.core.kinds import Command
from layby.core.model import Millis
from layby.core.regaining import tell_regained
from layby.core.replies import Reply, refuse
from layby.core.rows import Rows


def step(rows: Rows, command: Command, now: Millis) -> tuple[Reply, Draft]:
    draft = Draft(rows=rows, now=now)
    if (take := command.asks) is not None:
        rows.come(take.key, take.free)
    wrong = validate.problems(command) or strict.problems(command, rows.settings)
    if wrong is not None:
        return refuse(400, wrong), draft
    reply = type(command).handler(draft, command)
    if draft.regained:
        tell_regained(draft)
    return reply, draft
