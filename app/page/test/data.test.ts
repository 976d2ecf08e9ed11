/** The response cache, against a real server and with a mocked clock. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, beforeEach, mock, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { cacheEntry, changeCount, subscribe } from "../src/data.ts";

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

/** Subscribe, and wait for the response. */
async function visit(path: string): Promise<() => void> {
  const entry = cacheEntry(path);
  const before = entry.state.value;
  const stop = subscribe(path, entry, false);
  await until(() => entry.state.value !== before && !entry.isLoading);
  return stop;
}

test("a response is evicted ten seconds after its last subscriber left", async () => {
  const entry = cacheEntry("kept");
  (await visit("kept"))();
  mock.timers.tick(5_000);
  (await visit("kept"))();
  mock.timers.tick(9_000);
  assert.equal(cacheEntry("kept"), entry);
  mock.timers.tick(1_000);
  assert.notEqual(cacheEntry("kept"), entry);
});

test("a new subscriber within that time prevents the eviction", async () => {
  const entry = cacheEntry("back");
  (await visit("back"))();
  mock.timers.tick(5_000);
  const stop = await visit("back");
  mock.timers.tick(20_000);
  assert.equal(cacheEntry("back"), entry);
  stop();
});

test("an evicted response is cached again", async () => {
  const entry = cacheEntry("late");
  (await visit("late"))();
  mock.timers.tick(20_000);
  const stop = subscribe("late", entry, false);
  await until(() => !entry.isLoading);
  assert.equal(cacheEntry("late"), entry);
  stop();
});

test("a failure clears the earlier timer, which would send one more request", async () => {
  isAway = true;
  const entry = cacheEntry("twice");
  const stop = subscribe("twice", entry, false);
  entry.milliseconds = 1_000;
  changeCount.value += 1;
  for (const [failures, wait] of [[1, 1_000], [2, 2_000], [3, 2_500]] as const) {
    await until(() => entry.failures === failures && !entry.isLoading);
    mock.timers.tick(wait);
  }
  assert.equal(entry.isLoading, false);
  stop();
});
