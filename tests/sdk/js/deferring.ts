// A worker without an SDK: it speaks the protocol, and defers by layby.task.defer.
// It asks for money, leaves, and goes on when somebody has paid, or the time is up.

const [url, group] = process.argv.slice(2);
const pid = `ts-${process.pid}`;

type Value = { data?: string };
type Event = { id: string; state: string; value: Value };
type Resume = { name: string; kwargs: { factor: number }; event: Event };
type Task = { id: string; version: number; resume?: Resume };
type Answer = { status: number; data: any };

async function ask(kind: string, data: object): Promise<Answer> {
  const head = { corrId: "1", version: "2026-04-01" };
  const body = JSON.stringify({ kind, head, data });
  const answer = await (await fetch(url, { method: "POST", body })).json();
  return { status: answer.head.status, data: answer.data };
}

const decoded = (value: Value): any =>
  value.data ? JSON.parse(Buffer.from(value.data, "base64").toString()) : null;
const encoded = (value: unknown): Value => ({
  data: Buffer.from(JSON.stringify(value)).toString("base64"),
});

const functions: Record<string, (resume: Resume) => unknown> = {
  collect: ({ event, kwargs }) =>
    event.state === "resolved" ? decoded(event.value).amount * kwargs.factor : `no: ${event.state}`,
};

async function begin(task: Task): Promise<void> {
  const data = {
    id: task.id,
    version: task.version,
    trigger: { kind: "Event", args: { name: `paid-${task.id}` } },
    resume: { name: "collect", kwargs: { factor: 100 } },
    timeout: task.id.startsWith("late") ? 50 : 60_000,
  };
  const { status, data: told } = await ask("layby.task.defer", data);
  if (status !== 200 || told.task.state !== "deferred") throw new Error(JSON.stringify(told));
}

async function end(task: Task, result: unknown): Promise<void> {
  const action = {
    kind: "promise.settle",
    head: {},
    data: { id: task.id, state: "resolved", value: encoded(result) },
  };
  await ask("task.fulfill", { id: task.id, version: task.version, action });
}

async function serve(id: string, version: number): Promise<void> {
  const { status, data } = await ask("task.acquire", { id, version, pid, ttl: 60_000 });
  if (status !== 200) return;
  const { task }: { task: Task } = data;
  if (task.resume === undefined) await begin(task);
  else await end(task, functions[task.resume.name](task.resume));
}

const stream = await fetch(`${url}/poll/${group}/${pid}`);
console.log("connected");
let text = "";
for await (const part of stream.body!.pipeThrough(new TextDecoderStream())) {
  text += part;
  const lines = text.split("\n");
  text = lines.pop()!;
  for (const line of lines) {
    if (!line.startsWith("data: ")) continue;
    const message = JSON.parse(line.slice("data: ".length));
    if (message.kind === "execute") await serve(message.data.task.id, message.data.task.version);
  }
}
