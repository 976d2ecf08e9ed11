/** What is kept of a server's answers, and for how long: asked of a real server, on a clock that the test turns. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, beforeEach, mock, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { entryOf, happened, show } from "../src/data.ts";

const asked: string[] = [];
let isAway = false;
const server = createServer((request, response) => {
  asked.push(request.url!);
  response.writeHead(isAway ? 503 : 200, { "Content-Type": "application/json", Connection: "close" }).end("{}");
});

before(async () => {
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  Object.assign(globalThis, { document: { baseURI: `http://127.0.0.1:${port}/`, getElementById: () => null } });
  mock.timers.enable({ apis: ["setTimeout"] });
});

after(() => {
  mock.timers.reset();
  server.closeAllConnections();
  server.close();
});

beforeEach(() => {
  asked.length = 0;
  isAway = false;
});

async function until(isTrue: () => boolean): Promise<void> {
  while (!isTrue()) await turn();
}

/** Show it until it is answered. */
async function visit(path: string): Promise<() => void> {
  const entry = entryOf(path);
  const before = entry.state.value;
  const stop = show(path, entry, false);
  await until(() => entry.state.value !== before && !entry.asking);
  return stop;
}

test("an answer is kept ten seconds from the last look, and not from an earlier one", async () => {
  const entry = entryOf("kept");
  (await visit("kept"))();
  mock.timers.tick(5_000);
  (await visit("kept"))();
  mock.timers.tick(9_000);
  assert.equal(entryOf("kept"), entry);
  mock.timers.tick(1_000);
  assert.notEqual(entryOf("kept"), entry);
});

test("who comes back within that time keeps it", async () => {
  const entry = entryOf("back");
  (await visit("back"))();
  mock.timers.tick(5_000);
  const stop = await visit("back");
  mock.timers.tick(20_000);
  assert.equal(entryOf("back"), entry);
  stop();
});

test("an answer that was forgotten in between is kept up to date again", async () => {
  const entry = entryOf("late");
  (await visit("late"))();
  mock.timers.tick(20_000);
  const stop = show("late", entry, false);
  await until(() => !entry.asking);
  assert.equal(entryOf("late"), entry);
  stop();
});

test("a failure leaves no earlier timer behind, which would ask once more", async () => {
  isAway = true;
  const entry = entryOf("twice");
  const stop = show("twice", entry, false);
  entry.took = 1_000;
  happened.value += 1;
  for (const [failures, wait] of [[1, 1_000], [2, 2_000], [3, 2_500]] as const) {
    await until(() => entry.failures === failures && !entry.asking);
    mock.timers.tick(wait);
  }
  assert.equal(entry.asking, false);
  stop();
});
