"""The functions of ../js/yielding.mjs for the Python SDK."""

import asyncio
from datetime import timedelta


def make_functions(tell, hangs) -> list:
    async def hello(ctx, name: str) -> str:
        return f"Hello, {name}!"

    async def double(ctx, n: int) -> int:
        return 2 * n

    async def echo(ctx, value):
        return value

    async def step(ctx, what: str) -> str:
        tell("effect", what=what)
        if hangs == what:
            await asyncio.Event().wait()
        return what

    async def sums(ctx, n: int) -> int:
        return sum([await ctx.run(double, number) for number in range(1, n + 1)])

    async def calls(ctx, name: str) -> str:
        return await ctx.rpc("hello", name)

    async def fans_out(ctx, n: int) -> int:
        futures = [ctx.rpc("double", number) for number in range(1, n + 1)]
        return sum([await future for future in futures])

    async def naps(ctx, ms: int) -> None:
        await ctx.run(step, "lies down")
        await ctx.sleep(timedelta(milliseconds=ms))
        await ctx.run(step, "gets up")

    async def leaves(ctx, name: str) -> str:
        return await ctx.detached("hello", name)

    async def asks(ctx, timeout_ms: int | None = None):
        question = ctx.promise(timedelta(milliseconds=timeout_ms) if timeout_ms else None)
        tell("asks", promise=await question.id())
        return await question

    async def fails(ctx, text: str) -> None:
        raise RuntimeError(text)

    async def catches(ctx, text: str) -> str:
        try:
            await ctx.rpc("fails", text)
        except Exception as error:  # noqa: BLE001 - its class is the SDK's affair
            return f"caught: {error}"
        return "nothing to catch"

    async def takes(ctx, ms: int) -> None:
        tell("effect", what="began")
        await asyncio.sleep(ms / 1000)
        tell("effect", what="ended")

    async def survives(ctx) -> list:
        done = [await ctx.run(step, "first"), await ctx.run(step, "second")]
        return [*done, await ctx.rpc("hello", "again")]

    async def calls_for(ctx, name: str, args: list, target: str):
        return await ctx.options(target=target).rpc(name, *args)

    return [
        *(hello, double, echo, step, sums, calls, fans_out, naps, leaves),
        *(asks, fails, catches, takes, survives, calls_for),
    ]
