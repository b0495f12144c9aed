"""Deliberate bugs in `Credit`: the properties of its world must find every one.

Each is a piece of the source and what stands there instead. The schedules are drawn from seeds, so
they are the same each time; the ordinary run draws a few for each bug, the slow one many.
"""

import importlib.util
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from layby.worker import credit as real_credit
from tests.helpers.credit_world import Broken, World, schedule

SOURCE = Path(real_credit.__file__).read_text(encoding="utf-8")

BUGS = {
    # what slots are used for
    "slots kept for answers are not counted": (
        "self.slots - self.held - self.reserved - self.ending",
        "self.slots - self.held - self.ending",
    ),
    "cleaning up is not counted": (
        "self.slots - self.held - self.reserved - self.ending",
        "self.slots - self.held - self.reserved",
    ),
    "one slot too many is granted": ("while self.room > 0:", "while self.room >= 0:"),
    "an answer frees nothing": ("self.reserved -= ask.free", "pass"),
    "a question of its own keeps no slot": ("self.reserved += free", "self.reserved += not before"),
    "a body in line that is ended counts no more": (
        "            self._leave_line(contender)\n        elif contender.slot_state is not PARKED:",
        "            self.leave(contender)\n        elif contender.slot_state is not PARKED:",
    ),
    "a body that has cleaned up keeps its slot": ("self.ending -= 1", "pass"),
    "a body that is ended while it holds its slot may park": (
        "if contender.slot_state is not HELD or contender.is_ending:",
        "if contender.slot_state is not HELD:",
    ),
    "who parks keeps the slot": (
        "        self.held -= 1\n        self.parked += 1",
        "        self.parked += 1",
    ),
    "who is granted a slot is still parked": (
        "            if head.has_begun:\n                self.parked -= 1\n",
        "",
    ),
    "who ends while it is parked stays counted": (
        "contender.slot_state in (LINE, PARKED, ENDING)",
        "contender.slot_state in (LINE, ENDING)",
    ),
    "one more than max_parked": ("self.parked >= self.max_parked", "self.parked > self.max_parked"),
    "a slot is lent to nobody who was parked": (
        "is_last and head is not None and head.has_begun",
        "False",
    ),
    "a new task counts as one who was parked": (
        "if is_last and head is not None and head.has_begun:",
        "if is_last and head is not None:",
    ),
    "slots are lent one after the other": ("        self._lent_at = now\n", ""),
    "a slot is lent too late": ("now - self._lent_at < LEND_MS", "now - self._lent_at <= LEND_MS"),
    "who steps back stays in line": (
        "            self._leave_line(contender)\n            contender.slot_state = PARKED",
        "            contender.slot_state = PARKED",
    ),
    "who stands twice has two places": (
        "if contender.slot_state in (LINE, HELD, ENDING):",
        "if False:",
    ),
    # turns
    "last come, first served": (
        "heappush(self._line, (place, contender.number, contender))",
        "heappush(self._line, (-place, contender.number, contender))",
    ),
    "equals in any order": (
        "contender.place, contender.number, contender.joined_at = place, self._numbers, now",
        "contender.place, contender.number, contender.joined_at = place, -self._numbers, now",
    ),
    "a place that was left is taken for the new one": (
        "if contender.slot_state is LINE and contender.number == number:",
        "if contender.slot_state is LINE:",
    ),
    "what is left in the store takes no part": (
        "self.oldest_left < head.place",
        "self.oldest_left < 0",
    ),
    "a slot is kept for what is just as old": (
        "self.oldest_left < head.place",
        "self.oldest_left <= head.place",
    ),
    "a slot is kept for what may not be taken": (
        "return self.is_open and self.oldest_left is not None",
        "return self.oldest_left is not None",
    ),
    "nobody asks for what is older": (
        "if head is None or self.room <= 0 or not self._is_older_left(head):",
        "if True:",
    ),
    "a slot that waits for older ones takes later ones": (
        "return self._asked(free, before=head.place)",
        "return self._asked(free)",
    ),
    "nobody wants to hear of what is left": (
        "self.is_open and self._waiting > 0 and self.oldest_left is None",
        "False",
    ),
    "any answer is believed": ("if ask.number > self._told:", "if True:"),
    "a late answer is not listened to": ("elif oldest_left is not None:", "elif False:"),
    "what the standing take heard can be denied": ("is_news=ask.number == 0", "is_news=False"),
    "what goes back is forgotten": ("self._note_left(contender.place, is_news=True)", "pass"),
    "what goes back can be denied by what was asked before": (
        "self._note_left(contender.place, is_news=True)",
        "self._note_left(contender.place, is_news=False)",
    ),
    "what an overtaken answer brings may be passed by any number": (
        "task.passed >= self.slots",
        "task.passed >= 1_000",
    ),
    "a task on its way that never arrives": ("if first < task.number]", "]"),
    # what is asked for and offered
    "a closed worker takes": (
        "max(0, min(most, self.room)) if self.is_open else 0",
        "max(0, min(most, self.room))",
    ),
    "a closed worker offers": (
        "max(0, self.room - self._waiting) if self.is_open else 0",
        "max(0, self.room - self._waiting)",
    ),
    "a slot is offered that somebody in line wants": (
        "max(0, self.room - self._waiting)",
        "max(0, self.room)",
    ),
    "nothing is offered": ("return Offer(self.free,", "return Offer(0,"),
    # ahead
    "claims ahead beside free slots": ("if now is None or self.room > free:", "if now is None:"),
    "claims ahead forget those in line": (
        "- self._waiting - self.reserved_ahead",
        "- self.reserved_ahead",
    ),
    "claims ahead forget those on their way": (
        "- self._waiting - self.reserved_ahead",
        "- self._waiting",
    ),
    "claims ahead for what began long ago": (
        "now - self._begun[0] >= RECENT_MS",
        "now - self._begun[0] >= 2 * RECENT_MS",
    ),
    "one too many is claimed ahead": ("AHEAD: Final = 64", "AHEAD: Final = 65"),
    "claims ahead while it cools down": ("self._cooling = COOLING", "self._cooling = 0"),
    "cools down for too short": ("COOLING: Final = 32", "COOLING: Final = 31"),
    "claims ahead though it takes nothing": (
        "if self._cooling or not self.is_open:",
        "if self._cooling:",
    ),
    "calls and resumed bodies go back": (
        "if not (contender.has_begun or contender.is_call):",
        "if True:",
    ),
    "calls go back": (
        "if not (contender.has_begun or contender.is_call):",
        "if not contender.has_begun:",
    ),
    "goes back too late": (
        "if now - contender.joined_at < IN_LINE_MS:",
        "if now - contender.joined_at <= IN_LINE_MS:",
    ),
    "what was granted goes back": ("self._claims.pop(contender, None)", "pass"),
}

FEW, MANY = 150, 4_000
"""Schedules for each bug."""
RARE = (
    "a place that was left is taken for the new one",
    "any answer is believed",
    "what the standing take heard can be denied",
    "what goes back is forgotten",
    "what goes back can be denied by what was asked before",
    "what an overtaken answer brings may be passed by any number",
    "a slot is offered that somebody in line wants",
    "cools down for too short",
)
"""Bugs that few schedules show: they are looked for in the slow run."""


def module_of(source: str) -> ModuleType:
    name = "credit_with_a_bug"
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # msgspec looks annotations up there
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def seed_that_shows(module: ModuleType, seeds: range) -> int | None:
    for seed in seeds:
        slots, max_parked, events = schedule(Random(seed))
        try:
            World(slots, max_parked, module).play(events)
        except Broken:
            return seed
    return None


def with_bug(name: str) -> ModuleType:
    right, wrong = BUGS[name]
    assert right in SOURCE
    return module_of(SOURCE.replace(right, wrong))


def test_without_a_bug_nothing_is_found():
    assert seed_that_shows(module_of(SOURCE), range(FEW)) is None


@pytest.mark.parametrize("name", [name for name in BUGS if name not in RARE])
def test_the_properties_find(name):
    assert seed_that_shows(with_bug(name), range(FEW)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", RARE)
def test_the_properties_find_what_is_rare(name):
    assert seed_that_shows(with_bug(name), range(MANY)) is not None
