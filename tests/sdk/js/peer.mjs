// One process that uses a released SDK as its users do: `node peer.mjs SDK OPTIONS`.
//
// It is a worker with all our functions, or a client with none. On stdin it takes orders, one
// JSON object a line; on stdout it tells what happened, likewise, and when by the clock that all
// processes of the machine share. The SDK's warnings go to stderr.

import { createInterface } from "node:readline";

import { hooked } from "./hook.mjs";

const [, , sdk, text] = process.argv;
const { url, group, pid, ttl, token, is_pushed, functions, hangs } = JSON.parse(text);
const isAsync = sdk.endsWith("/async");
const { Resonate, HttpNetwork } = await import(sdk);
const { makeFunctions } = await import(isAsync ? "./awaiting.mjs" : "./yielding.mjs");

const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const tell = (said, fields = {}) => console.log(JSON.stringify({ said, at: seconds(), ...fields }));
const complain = (fields, message) => console.error(JSON.stringify({ message, ...fields }));
const logger = {
  debug() {},
  info(_, message) {
    if (/^adapter (re)?connected$/.test(message)) tell("connected");
  },
  warn: complain,
  error: complain,
};

const network = is_pushed ? await hooked(HttpNetwork, url) : undefined;
const resonate = new Resonate({ url, group, pid, ttl, token, network, logger });
if (functions) {
  const named = Object.entries(makeFunctions(tell, hangs));
  for (const [name, func] of named) resonate.register(name, func);
}
if (is_pushed) tell("connected");

const begin = isAsync
  ? { run: resonate.run, rpc: resonate.rpc }
  : { run: resonate.beginRun, rpc: resonate.beginRpc };
const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64");
const asError = (message) => ({ __type: "error", name: "Error", message });

const orders = {
  ping() {
    tell("pong");
  },
  async run({ id, name, args }) {
    await follow(await begin.run.call(resonate, id, name, ...args));
  },
  async rpc({ id, name, args, target }) {
    const options = resonate.options({ target });
    await follow(await begin.rpc.call(resonate, id, name, ...args, options));
  },
  async get({ id }) {
    await follow(await resonate.get(id));
  },
  async resolve({ id, value }) {
    await resonate.promises.resolve(id, { data: encoded(value) });
  },
  async reject({ id, message }) {
    await resonate.promises.reject(id, { data: encoded(asError(message)) });
  },
  async schedule({ id, cron, name, args }) {
    await resonate.schedule(id, cron, name, ...args);
    tell("scheduled", { id });
  },
  async unschedule({ id }) {
    await resonate.schedules.delete(id);
    tell("unscheduled", { id });
  },
};

async function follow(handle) {
  const { id } = handle;
  tell("created", { id });
  tell("result", { id, value: (await handle.result()) ?? null });
}

async function obey(order) {
  try {
    await orders[order.do](order);
  } catch (error) {
    tell("error", { id: order.id, message: error?.message ?? String(error) });
  }
}

for await (const line of createInterface({ input: process.stdin })) obey(JSON.parse(line));
