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
from tests.helpers.credit_world import MIXED, PLAIN, Broken, World, schedule

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
    "an answer frees nothing": ("self.reserved -= ask.free", "pass"),
    "a question of its own keeps no slot": ("self.reserved += free", "self.reserved += not before"),
    "a body in line that is ended counts no more": (
        "            self._leave_line(contender)\n        elif contender.slot_state is not PARKED:",
        "            self.leave(contender)\n        elif contender.slot_state is not PARKED:",
    ),
    "a body that has cleaned up keeps its slot": ("self.ending -= contender.slots", "pass"),
    "a body that is ended while it holds its slot may park": (
        "if contender.slot_state is not HELD or contender.is_ending:",
        "if contender.slot_state is not HELD:",
    ),
    "who parks keeps the slot": (
        "        self.held -= contender.slots\n        self.parked += 1",
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
        "head is not None and head.has_begun and unused < head.slots",
        "False",
    ),
    "a new task counts as one who was parked": (
        "if head is not None and head.has_begun and unused < head.slots:",
        "if head is not None and unused < head.slots:",
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
        "heappush(self._line, (-contender.priority, place, number, contender))",
        "heappush(self._line, (-contender.priority, -place, number, contender))",
    ),
    "equals in any order": (
        "contender.place, contender.number, contender.joined_at = place, self._numbers, now",
        "contender.place, contender.number, contender.joined_at = place, -self._numbers, now",
    ),
    "a place that was left is taken for the new one": (
        "return contender.slot_state is LINE and contender.number == number",
        "return contender.slot_state is LINE",
    ),
    "what is left in the store takes no part": (
        "return left is not None and (head is None",
        "return False and (head is None",
    ),
    "a slot is kept for what is just as old": (
        "return place.turn < (-head.priority, head.place)",
        "return place.turn <= (-head.priority, head.place)",
    ),
    "a slot is kept for what may not be taken": (
        "left = self._left if self.is_open else None",
        "left = self._left",
    ),
    "nobody asks for what is older": (
        "if self.room <= 0 or (head is None and not is_for_oldest):",
        "if True:",
    ),
    "a slot that waits for older ones takes later ones": (
        "return self._asked(free, before=head, oldest=is_for_oldest)",
        "return self._asked(free, oldest=is_for_oldest)",
    ),
    "nobody wants to hear of what is left": (
        "if left is None or is_kept_for:\n            return Offer(self.free, in_line=True,",
        "if left is None or is_kept_for:\n            return Offer(self.free, in_line=False,",
    ),
    "any answer is believed": ("if ask.number > self._told:", "if True:"),
    "a late answer is not listened to": (
        "elif next_left is not None and oldest_left is not None:",
        "elif False:",
    ),
    "what the standing take heard can be denied": ("is_news=ask.number == 0", "is_news=False"),
    "what goes back is forgotten": ("self._note_left(place, place, is_news=True)", "pass"),
    "what goes back can be denied by what was asked before": (
        "self._note_left(place, place, is_news=True)",
        "self._note_left(place, place, is_news=False)",
    ),
    "what an overtaken answer brings may be passed by any number": (
        "task.passed >= self.slots",
        "task.passed >= 1_000",
    ),
    "a task on its way that never arrives": ("if first < task.number]", "]"),
    # what is asked for and offered
    "a closed worker takes": (
        "max(0, min(wanted, self.room)) if self.is_open else 0",
        "max(0, min(wanted, self.room))",
    ),
    "a closed worker offers": (
        "max(0, self.room - self._slots_waited_for) if self.is_open else 0",
        "max(0, self.room - self._slots_waited_for)",
    ),
    "a slot is offered that somebody in line wants": (
        "max(0, self.room - self._slots_waited_for)",
        "max(0, self.room)",
    ),
    "nothing is offered": (
        "return Offer(self.free, oldest=self._seeks_oldest and self.free > 0)",
        "return Offer(0)",
    ),
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

MIXED_BUGS = {
    # priorities
    "priorities do not matter": (
        "heappush(self._line, (-contender.priority, place, number, contender))",
        "heappush(self._line, (0, place, number, contender))",
    ),
    "the lowest priority is first": (
        "heappush(self._line, (-contender.priority, place, number, contender))",
        "heappush(self._line, (contender.priority, place, number, contender))",
    ),
    "priorities in the store do not matter": (
        "return place.turn < (-head.priority, head.place)",
        "return place.ready_at < head.place",
    ),
    "asks without the priority of the head": (
        "before.place, before.priority, oldest",
        "before.place, 0, oldest",
    ),
    "what goes back loses its priority": (
        "TaskPlace(contender.place, contender.priority, contender.slots)",
        "TaskPlace(contender.place, 0, contender.slots)",
    ),
    "it is never the turn of the oldest": (
        "return self._turns % EVERY == EVERY - 1 and self._is_mixed",
        "return False",
    ),
    "it is the turn of the oldest too late": ("EVERY: Final = 8", "EVERY: Final = 9"),
    "turns are not counted": ("            self._turns += 1\n", ""),
    "the oldest in line has no turn": (
        "if self._prior_waiting and self._is_turn_of_oldest:",
        "if False:",
    ),
    "who came later is not among the oldest": (
        "if self._by_age is not None:",
        "if False:",
    ),
    "the oldest in the store has no turn": (
        "return self.oldest_left if self._is_turn_of_oldest else self.next_left",
        "return self.next_left",
    ),
    "asks for the first when it is the turn of the oldest": (
        "self._asked(self.room, before=head, oldest=is_for_oldest)",
        "self._asked(self.room, before=head)",
    ),
    "a report asks for the first when it is the turn of the oldest": (
        "self._asked(free, before=head, oldest=is_for_oldest)",
        "self._asked(free, before=head)",
    ),
    # several slots
    "one slot too many is granted": (
        "if head is None or head.slots > self.room:",
        "if head is None or head.slots > self.room + 1:",
    ),
    "a body holds one slot": ("self.held += head.slots", "self.held += 1"),
    "who parks releases one slot": (
        "        self.held -= contender.slots\n        self.parked += 1",
        "        self.held -= 1\n        self.parked += 1",
    ),
    "who ends releases one slot": (
        "            self.held -= contender.slots\n        elif",
        "            self.held -= 1\n        elif",
    ),
    "cleaning up counts as one slot": (
        "self.ending += contender.slots",
        "self.ending += 1",
    ),
    "who needs more than there are has its slots for nothing": (
        "contender.slots = min(contender.slots, self.slots)",
        "pass",
    ),
    "slots are not kept for a task in the store": (
        "return left is not None and (head is None",
        "return left is not None and left.slots <= self.room and (head is None",
    ),
    "slots are kept for a task that is gone": (
        "if self._needed() > self.room and not self._is_in_doubt:",
        "if self._needed() > self.room:",
    ),
    "it is asked again and again for a task that needs more": (
        "        self._is_in_doubt = False\n        return",
        "        return",
    ),
    "nobody wants to hear that it is gone": (
        "if left is None or is_kept_for:",
        "if left is None:",
    ),
}
"""Those that only worlds with priorities, or with tasks of several slots, can show."""

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
    "what goes back loses its priority",
    "cleaning up counts as one slot",
    "nobody wants to hear that it is gone",
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


def seed_that_shows(module: ModuleType, seeds: range, *, is_mixed: bool = False) -> int | None:
    for seed in seeds:
        slots, max_parked, events = schedule(Random(seed))
        kinds = MIXED[seed % len(MIXED)] if is_mixed else PLAIN
        try:
            World(slots + is_mixed, max_parked, module, kinds).play(events)
        except Broken:
            return seed
    return None


def with_bug(name: str) -> ModuleType:
    right, wrong = {**BUGS, **MIXED_BUGS}[name]
    assert right in SOURCE
    return module_of(SOURCE.replace(right, wrong))


def test_without_a_bug_nothing_is_found():
    assert seed_that_shows(module_of(SOURCE), range(FEW)) is None


@pytest.mark.parametrize("name", [name for name in BUGS if name not in RARE])
def test_the_properties_find(name):
    assert seed_that_shows(with_bug(name), range(FEW)) is not None


def test_without_a_bug_nothing_is_found_among_priorities_and_slots():
    assert seed_that_shows(module_of(SOURCE), range(FEW), is_mixed=True) is None


@pytest.mark.parametrize("name", [name for name in MIXED_BUGS if name not in RARE])
def test_the_properties_of_priorities_and_slots_find(name):
    assert seed_that_shows(with_bug(name), range(FEW), is_mixed=True) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", RARE)
def test_the_properties_find_what_is_rare(name):
    is_mixed = name in MIXED_BUGS
    assert seed_that_shows(with_bug(name), range(MANY), is_mixed=is_mixed) is not None
