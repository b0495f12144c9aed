from layby.core.ids import ancestors_of, life_id, life_number, life_root_of, root_of


def test_ids_of_lives():
    """They lie below the run's own, and no task's name can be mistaken for one."""
    assert (life_id("run/a", 1), life_id("run/a", 2)) == ("run/a", "run/a:life/2")
    roots = {
        "run/a": "run/a",
        "run/a:ship": "run/a",
        "run/a:ship.c.key": "run/a",
        "run/a:life": "run/a",
        "run/a:life/2": "run/a:life/2",
        "run/a:life/2:ship": "run/a:life/2",
        "run/a:life/12:ship.c.key:1": "run/a:life/12",
        "call.1": "call",
        "a:b:c": "a",
    }
    assert {each: life_root_of(each) for each in roots} == roots
    assert {root_of(each) for each in roots if each.startswith("run/a")} == {"run/a"}


def test_the_number_of_a_life():
    ids = [life_id("run/a", life) for life in (1, 2, 12)]
    assert [life_number(each) for each in ids] == [1, 2, 12]
    assert life_number("run/a:life") == 1


def test_ancestors():
    assert ancestors_of("run/a:ship.c") == ["run/a", "run/a:ship"]
    assert ancestors_of("alone") == []
    assert ancestors_of(".hidden") == []
