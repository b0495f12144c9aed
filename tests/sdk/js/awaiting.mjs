// The functions of yielding.mjs for the SDK's second engine: workflows are async functions.

import { setTimeout as pause } from "node:timers/promises";

export function makeFunctions(tell, hangs) {
  const hello = async (_ctx, name) => `Hello, ${name}!`;
  const double = async (_ctx, n) => 2 * n;
  const echo = async (_ctx, value) => value;
  const step = async (_ctx, what) => {
    tell("effect", { what });
    if (hangs === what) await new Promise(() => {});
    return what;
  };

  async function sums(ctx, n) {
    let sum = 0;
    for (let i = 1; i <= n; i++) sum += await ctx.run(double, i);
    return sum;
  }

  async function calls(ctx, name) {
    return await ctx.rpc("hello", name);
  }

  async function fans_out(ctx, n) {
    const futures = [];
    for (let i = 1; i <= n; i++) futures.push(ctx.rpc("double", i));
    let sum = 0;
    for (const future of futures) sum += await future;
    return sum;
  }

  async function naps(ctx, ms) {
    await ctx.run(step, "lies down");
    await ctx.sleep(ms);
    await ctx.run(step, "gets up");
  }

  async function leaves(ctx, name) {
    return (await ctx.detached("hello", name)).id;
  }

  async function asks(ctx, timeout) {
    const question = ctx.promise(timeout ? { timeout } : {});
    tell("asks", { promise: question.id });
    return await question;
  }

  async function fails(_ctx, text) {
    throw new Error(text);
  }

  async function catches(ctx, text) {
    try {
      await ctx.rpc("fails", text);
    } catch (error) {
      return `caught: ${error.message}`;
    }
  }

  async function takes(_ctx, ms) {
    tell("effect", { what: "began" });
    await pause(ms);
    tell("effect", { what: "ended" });
  }

  async function survives(ctx) {
    const done = [await ctx.run(step, "first")];
    done.push(await ctx.run(step, "second"));
    done.push(await ctx.rpc("hello", "again"));
    return done;
  }

  async function calls_for(ctx, name, args, target) {
    return await ctx.rpc(name, ...args, ctx.options({ target }));
  }

  return {
    hello, double, echo, step, sums, calls, fans_out, naps, leaves,
    asks, fails, catches, takes, survives, calls_for,
  };
}
