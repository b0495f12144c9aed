"""Which tags a promise has is found out from its stored text, whatever else is in there."""

import msgspec
import pytest

from layby.core import commands as c
from layby.core.tag_names import ON_CANCEL, RESERVED, TARGET, has_tag, tag_of
from tests.helpers.worlds import EVERY_BACKEND, World


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_tag_is_not_found_in_the_middle_of_others(name: str) -> None:
    """Neither in a value nor in a name that ends like it."""
    assert has_tag(msgspec.json.encode({"a": "b", name: "c"}).decode(), name)
    assert tag_of(msgspec.json.encode({name: "c", "a": "b"}).decode(), name) == "c"
    for other in (f'a"{name}', f'{{"{name}', f',"{name}', f"\\{name}", f'"{name}":"x"', f"x{name}"):
        for tags in ({other: "b"}, {"a": other}, {"a": f'{other}":'}):
            text = msgspec.json.encode(tags).decode()
            assert not has_tag(text, name)
            assert tag_of(text, name) is None


def test_a_name_that_ends_like_that_of_a_target_is_no_damage() -> None:
    """`layby doctor` asks whether a promise has a task if and only if it has a target."""
    with World() as world:
        world.ok(c.CreatePromise(id="x", timeout_at=9, tags={f'a"{TARGET}': "x"}))
        world.check()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_name_that_ends_like_one_stops_no_deadline(backend) -> None:
    """Anybody may give a promise such a tag; its deadline would be tried again for ever."""
    with World(backend) as world:
        tags = {
            "resonate:target": "poll://any@layby.triggers",
            "layby:name": "f",
            f'a"{ON_CANCEL}': "x",
        }
        world.ok(c.CreatePromise(id="x", timeout_at=world.now + 5, tags=tags))
        world.clock.advance(10)
        world.tick()
        assert world.promise("x").state == "rejected_timedout"
        world.check()
