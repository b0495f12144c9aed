"""What pyright and mypy must say about code that uses layby; `make types` asks both.

Never run. `assert_type` fails unless the type is exactly that; a line with `type: ignore`
is wrong on purpose, and both tools complain about a comment they did not need. The names in
brackets are mypy's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, assert_type

import msgspec
import pydantic

import layby
from layby import (
    BlockingHandle,
    BlockingRunner,
    ChildRun,
    Context,
    Run,
    Runner,
    Schedule,
    TaskHandle,
    Workflow,
    current_handle,
    task,
)
from layby.testing import deterministic_runner
from layby.workflow import TaskDefinition


class Order(TypedDict):
    number: int
    parcel: NotRequired[str]


@dataclass
class Offer:
    amount: int
    express: bool = False


class Ticket(msgspec.Struct):
    seat: str


class Person(pydantic.BaseModel):
    name: str


# --- @task keeps the function's signature ----------------------------------------------------


@task
async def pack(context: Context) -> dict[str, int]:
    return {"parcel": context["order"]}


@task(retries=3, dependencies=[pack], rpc="weigh")
async def weigh(context: Context, handle: TaskHandle, scale: float = 1.0) -> float:
    return 2.0 * scale


@task(rpc="measure")
def measure(context: Context, handle: BlockingHandle) -> int:
    return 3


@task(rpc="book")
async def book(context: Context) -> None:
    context["booked"] = True


async def tasks_are_still_their_functions(context: Context, handle: TaskHandle) -> None:
    assert_type(await pack(context), dict[str, int])
    assert_type(await weigh(context, handle, scale=2.0), float)
    assert_type(weigh.id, str)
    await pack()  # type: ignore[call-arg]
    await weigh(context, handle, scale="2")  # type: ignore[arg-type]
    pack(context).upper()  # type: ignore[attr-defined]


def a_task_is_generic(definition: TaskDefinition[[Context], int]) -> None:
    assert_type(definition(Context()), int)


@task(retries="3")  # type: ignore[call-overload, untyped-decorator]
async def too_many_words(context: Context) -> None: ...


@task(rule="all_sucess")  # type: ignore[call-overload, untyped-decorator]
async def misspelt(context: Context) -> None: ...


# --- handles ---------------------------------------------------------------------------------


def price(article: str, pieces: int = 1) -> float:
    return len(article) * pieces


async def stock(article: str) -> list[int]:
    return [len(article)]


async def what_a_handle_returns(handle: TaskHandle) -> None:
    assert_type(await handle.checkpoint("price", price, "lamp"), float)
    assert_type(await handle.checkpoint("price", price, "lamp", pieces=3), float)
    assert_type(await handle.checkpoint("stock", stock, "lamp"), list[int])
    assert_type(await handle.checkpoint("now", lambda: "noon"), str)
    assert_type(await handle.wait_for("promise"), Any)
    assert_type(await handle.start("shipping", {"order": 7}), ChildRun)
    assert_type(await handle.start(Workflow("shipping", tasks=[book]), detach=True), ChildRun)
    await handle.start(7)  # type: ignore[arg-type]
    assert_type(handle.try_number, int)
    assert_type(current_handle(), TaskHandle)
    await handle.checkpoint("price", price)  # type: ignore[call-overload]
    await handle.checkpoint("price", price, 7)  # type: ignore[call-overload]
    await handle.defer_until(condition=True)  # type: ignore[arg-type]
    await handle.sleep("1 h")  # type: ignore[arg-type]


@task
async def resized(context: Context, item: str) -> Offer:
    return Offer(len(item))


@task
def counted(context: Context, item: str) -> int:
    return len(item)


async def what_a_map_returns(handle: TaskHandle) -> None:
    assert_type(await handle.map(resized, ["a.png"]), list[Offer])
    assert_type(await handle.map(counted, ["a.png"], limit=20, key="sizes"), list[int])
    await handle.map(resized, ["a.png"], on_error="ignore")  # type: ignore[call-overload]
    await handle.map(resized, 7)  # type: ignore[call-overload]


async def what_a_call_returns(handle: TaskHandle) -> None:
    assert_type(await handle.rpc("weigh", {"order": 7}), Any)
    assert_type(await handle.rpc("weigh", {"order": 7}, returns=float), float)
    assert_type(await handle.rpc("offer", returns=Offer, timeout=60), Offer)
    assert_type(await handle.rpc(weigh, {"order": 7}), float)
    assert_type(await handle.rpc(measure, {"order": 7}, target="poll://any@halls"), int)
    await handle.rpc("weigh", times=3)  # type: ignore[call-overload]
    assert_type(await handle.rpc(book, {"order": 7}), Any)  # the keys that it has set
    await handle.rpc(price, "lamp")  # type: ignore[call-overload]


def what_a_blocking_handle_returns(handle: BlockingHandle) -> None:
    assert_type(handle.checkpoint("price", price, "lamp"), float)
    assert_type(handle.checkpoint("stock", stock, "lamp"), list[int])
    assert_type(handle.rpc("weigh", {"order": 7}, returns=float), float)
    assert_type(handle.rpc(weigh, {"order": 7}), float)
    assert_type(handle.rpc(measure, {"order": 7}), int)
    assert_type(handle.promise("decision").id, str)
    assert_type(handle.is_cancelled, bool)
    handle.sleep(60, key="nap")
    handle.sleep(seconds="60")  # type: ignore[arg-type]
    handle.defer_until(bool, poll_intervall=3)  # type: ignore[call-arg]


# --- contexts --------------------------------------------------------------------------------


def what_a_context_returns(context: Context) -> None:
    assert_type(context["order"], Any)
    assert_type(context.typed(Order), Order)
    assert_type(context.typed(Order)["number"], int)
    assert_type(context.typed(Offer).express, bool)
    assert_type(context.typed(Ticket).seat, str)
    assert_type(context.typed(Person).name, str)
    str(context.typed(Order)["nomber"])  # type: ignore[typeddict-item]
    str(context.typed(Offer).amont)  # type: ignore[attr-defined]
    context[7] = "seven"  # type: ignore[index]


plain = Workflow("plain", tasks=[pack])
by_typed_dict = Workflow("order", tasks=[pack], context=Order)
by_dataclass = Workflow("offer", tasks=[pack], context=Offer)
by_struct = Workflow("ticket", tasks=[pack], context=Ticket)
by_model = Workflow("person", tasks=[pack], context=Person)

assert_type(plain, Workflow[Mapping[str, Any]])
assert_type(by_typed_dict, Workflow[Order])

Workflow("plain", tasks=[price])  # type: ignore[list-item]
Workflow("order", tasks=[pack], context="Order")  # type: ignore[call-overload]


async def what_a_runner_takes(runner: Runner) -> None:
    assert_type(await runner.start(plain, {"any": "thing"}), Run)
    await runner.start(plain)
    assert_type(await runner.list(state="Running"), list[Run])
    assert_type(await runner.schedules(), list[Schedule])
    await runner.start(by_typed_dict, {"number": 7})
    await runner.start(by_dataclass, Offer(100))
    await runner.execute(by_struct, Ticket("12 A"), deadline=60)
    await runner.schedule(by_model, "0 9 * * *", context=Person(name="Ada"))
    assert_type(await runner.execute(plain), Context)
    assert_type((await runner.execute(plain)).typed(Order), Order)
    await runner.start(by_typed_dict, Order(number=7))
    await runner.start(by_typed_dict, Order(number="7"))  # type: ignore[typeddict-item]
    await runner.start(by_typed_dict, Order(nomber=7))  # type: ignore[typeddict-item]
    await runner.start(by_dataclass, Ticket("12 A"))  # type: ignore[misc]
    await runner.start(plain, "order")  # type: ignore[misc]
    await runner.start(plain, run=7)  # type: ignore[call-arg]


def what_a_blocking_runner_takes() -> None:
    with BlockingRunner("memory:", slots=2) as runner:
        assert_type(runner.execute(plain, {"order": 7}, timeout=60), Context)
        runner.start(by_dataclass, Offer(100), run_id="offer-1").result(timeout=5)
        runner.start(by_dataclass, Ticket("12 A"))  # type: ignore[misc]
        runner.start(plain, runid="7")  # type: ignore[call-arg]
    BlockingRunner("memory:", slot=2)  # type: ignore[call-arg]
    assert_type(layby.run(plain, {"order": 7}, slots=1), Context)
    layby.run(plain, {"order": 7}, slots="1")  # type: ignore[arg-type]


async def what_tests_take() -> None:
    async with deterministic_runner(slots=2, seed=7) as runner:
        assert_type(runner, Runner)
    async with deterministic_runner(slotz=2):  # type: ignore[call-arg]
        pass
