"""What flows between the tasks of a run, end to end."""

import asyncio

import pytest

from layby import RunFailed, Runner, task
from layby.errors import RuleError
from layby.testing import virtual_test
from tests.helpers.flows import flow_of


async def result_of(*tasks, context=None, slots=4):
    async with Runner("memory:", slots=slots) as runner:
        return (await runner.execute(flow_of(*tasks), context)).to_dict()


@virtual_test
async def test_changes_are_kept_whether_or_not_a_value_is_returned():
    """Set, changed deep inside, removed, returned: all of it reaches the next task."""

    @task
    async def changes(context):
        context["set"] = 1
        context["deep"]["list"].append(3)
        context.remove("gone")

    @task(dependencies=[changes])
    async def returns(context):
        context["also"] = context["set"] + 1
        return {"returned": sorted(context)}

    @task(dependencies=[returns])
    async def apart(context):
        return "not a mapping: a result of its own"

    found = await result_of(
        changes, returns, apart, context={"deep": {"list": [1, 2]}, "gone": True}
    )
    assert found == {
        "deep": {"list": [1, 2, 3]},
        "set": 1,
        "also": 2,
        "returned": ["also", "deep", "set"],
    }


@virtual_test
async def test_a_failing_try_discards_its_changes():
    """The next try starts from the context of the first, also from its deep values."""
    seen = []

    @task(retries=2)
    async def flaky(context, handle):
        seen.append(context.to_dict())
        context["n"] = handle.try_number
        context["deep"]["list"].append(handle.try_number)
        if handle.try_number < 3:
            raise ValueError

    found = await result_of(flaky, context={"deep": {"list": []}})
    assert seen == [{"deep": {"list": []}}] * 3
    assert found == {"deep": {"list": [3]}, "n": 3}


@virtual_test
async def test_a_plain_function_has_the_same_context():
    """Changes and returned values of a `def` in a thread are kept alike."""

    @task
    def plain(context):
        context["set"] = True
        return {"returned": True}

    assert await result_of(plain) == {"set": True, "returned": True}


@virtual_test
async def test_a_fan_in_merges():
    """Later dependencies win between concurrent writers, causally later ones always."""

    @task
    async def base(context):
        context.update({"who": "base", "kept": "base", "over": "base"})

    @task(dependencies=[base])
    async def left(context):
        context["who"] = "left"
        context["left"] = 1

    @task(dependencies=[base])
    async def right(context):
        context["who"] = "right"
        context.remove("over")

    @task(dependencies=[right, left])
    async def join(context):
        context["seen"] = dict(sorted(context.items()))

    found = await result_of(base, left, right, join)
    assert found["seen"] == {"kept": "base", "left": 1, "who": "left"}


@virtual_test
async def test_the_final_context_merges_all_leaves():
    """In the order of the workflow, whichever leaf ended first."""

    @task
    async def slow(context, handle):
        await handle.sleep(10)
        context.update({"who": "slow", "slow": 1})

    @task
    async def quick(context):
        context.update({"who": "quick", "quick": 1})

    assert await result_of(slow, quick) == {"who": "quick", "slow": 1, "quick": 1}
    assert await result_of(quick, slow) == {"who": "slow", "slow": 1, "quick": 1}


@virtual_test
async def test_a_failed_or_skipped_task_passes_on_what_it_was_given():
    """Its own changes are gone; those before it are not."""

    @task
    async def first(context):
        context["first"] = 1

    @task(dependencies=[first])
    async def bad(context):
        context["bad"] = 1
        raise ValueError

    @task(dependencies=[bad])
    async def skipped(context): ...

    @task(dependencies=[bad, skipped], rule="all_done")
    async def last(context):
        seen.append(context.to_dict())

    seen = []
    with pytest.raises(RunFailed):
        await result_of(first, bad, skipped, last)
    assert seen == [{"first": 1}]


@virtual_test
async def test_a_rule_function_sees_outcomes_and_context():
    """It decides with the merged context; what it answers with no is skipped, not failed."""

    @task
    async def first(context):
        context["go"] = False

    def wanted(outcomes, context):
        seen.append((dict(outcomes), context["go"]))
        return context["go"]

    @task(dependencies=[first], rule=wanted)
    async def maybe(context):
        context["ran"] = True

    seen = []
    assert await result_of(first, maybe) == {"go": False}
    assert seen == [({"first": "Completed"}, False)]


@virtual_test
async def test_a_rule_that_raises_fails_its_task():
    """Nobody can say whether the task should run: that is this task's failure."""

    @task
    async def first(context): ...

    def broken(outcomes, context):
        raise KeyError("oops")

    @task(dependencies=[first], rule=broken)
    async def maybe(context): ...

    with pytest.raises(RunFailed, match=r"rule .*broken raised KeyError") as told:
        await result_of(first, maybe)
    assert RuleError.__name__ in told.value.failed["maybe"]


@virtual_test
async def test_what_is_not_json_fails_the_task_and_names_the_key():
    """Set or returned, in a thread or on the loop."""

    @task
    async def sets(context):
        context["when"] = {"deep": [object()]}

    @task
    def returns(context):
        return {"amount": {1, 2}}

    for each, key in ((sets, "when"), (returns, "amount")):
        with pytest.raises(RunFailed, match=key):
            await result_of(each)


@virtual_test
async def test_a_task_that_makes_the_context_huge_fails():
    """The error names the largest keys and the remedy."""

    @task
    async def huge(context):
        context["blob"] = "x" * 1_000_001

    with pytest.raises(RunFailed, match=r"'blob' \(1,000,0\d\d bytes\).*store large data"):
        await result_of(huge)


@virtual_test
async def test_a_long_chain_carries_one_list():
    """Each of 100 tasks adds to what the one before left."""
    names = [f"t{number}" for number in range(100)]

    def link(number: int):
        @task(id=names[number], dependencies=names[number - 1 : number] if number else ())
        async def append(context):
            context["list"] = [*context.get("list", []), number]

        return append

    found = await result_of(*map(link, range(100)))
    assert found == {"list": list(range(100))}


@virtual_test
async def test_a_wide_fan_out_and_in():
    """200 concurrent tasks on 4 slots, each with a key of its own, all merged at the end."""

    def member(number: int):
        @task(id=f"m{number}")
        async def work(context):
            await asyncio.sleep(0.01)
            context[f"k{number}"] = number

        return work

    members = [member(number) for number in range(200)]

    @task(dependencies=members)
    async def join(context):
        context["sum"] = sum(context.values())

    found = await result_of(*members, join)
    assert found["sum"] == sum(range(200))
    assert len(found) == 201
