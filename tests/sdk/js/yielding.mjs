// Our functions for the SDK's first engine: workflows are generators.
// awaiting.mjs and ../python/functions.py say the same to the others.

import { setTimeout as pause } from "node:timers/promises";

export function makeFunctions(tell, hangs) {
  const hello = (_ctx, name) => `Hello, ${name}!`;
  const double = (_ctx, n) => 2 * n;
  const echo = (_ctx, value) => value;
  const step = async (_ctx, what) => {
    tell("effect", { what });
    if (hangs === what) await new Promise(() => {});
    return what;
  };

  function* sums(ctx, n) {
    let sum = 0;
    for (let i = 1; i <= n; i++) sum += yield* ctx.run(double, i);
    return sum;
  }

  function* calls(ctx, name) {
    return yield* ctx.rpc("hello", name);
  }

  function* fans_out(ctx, n) {
    const futures = [];
    for (let i = 1; i <= n; i++) futures.push(yield* ctx.beginRpc("double", i));
    let sum = 0;
    for (const future of futures) sum += yield* future;
    return sum;
  }

  function* naps(ctx, ms) {
    yield* ctx.run(step, "lies down");
    yield* ctx.sleep(ms);
    yield* ctx.run(step, "gets up");
  }

  function* leaves(ctx, name) {
    const left = yield* ctx.detached("hello", name);
    return left.id;
  }

  function* asks(ctx, timeout) {
    const question = yield* ctx.promise(timeout ? { timeout } : {});
    tell("asks", { promise: question.id });
    return yield* question;
  }

  function* fails(_ctx, text) {
    throw new Error(text);
  }

  function* catches(ctx, text) {
    try {
      yield* ctx.rpc("fails", text);
    } catch (error) {
      return `caught: ${error.message}`;
    }
  }

  async function takes(_ctx, ms) {
    tell("effect", { what: "began" });
    await pause(ms);
    tell("effect", { what: "ended" });
  }

  function* survives(ctx) {
    const done = [yield* ctx.run(step, "first")];
    done.push(yield* ctx.run(step, "second"));
    done.push(yield* ctx.rpc("hello", "again"));
    return done;
  }

  function* calls_for(ctx, name, args, target) {
    return yield* ctx.rpc(name, ...args, ctx.options({ target }));
  }

  return {
    hello, double, echo, step, sums, calls, fans_out, naps, leaves,
    asks, fails, catches, takes, survives, calls_for,
  };
}
