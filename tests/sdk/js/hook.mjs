// A network of the SDK for a worker that listens to nothing: the server posts its messages to it,
// as to a function in some cloud.

import { createServer } from "node:http";
import { once } from "node:events";

export async function hooked(HttpNetwork, url) {
  const receivers = [];
  const server = createServer(async (request, response) => {
    const message = JSON.parse(Buffer.concat(await request.toArray()));
    response.end();
    for (const receive of receivers) receive(message);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const here = `http://127.0.0.1:${server.address().port}/`;
  const adapter = {
    unicast: here,
    anycast: here,
    match: () => here,
    async init() {},
    async stop() {},
    onReceive: (receive) => receivers.push(receive),
  };
  return new HttpNetwork({ url, adapter });
}
