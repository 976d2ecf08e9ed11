/** Studies are found by words, and those of one search plan have one letter. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { attributesIn, chosenStudies, isMeant, sharedPlans, wordsIn } from "../src/layout/studies.ts";
import type { Listed } from "../src/types.ts";

const LISTED = { study: "digits-3f", name: "digits", state: "running", begins: "", project: "vision", owner: "ada", tags: ["paper", "draft"] } as Listed;

test("each word must be found, and a field is looked into alone", () => {
  assert.ok(isMeant(LISTED, "") && isMeant(LISTED, "DIGITS state:run"));
  assert.ok(!isMeant(LISTED, "digits state:completed") && !isMeant(LISTED, "state:digits"));
  assert.ok(isMeant(LISTED, "project:vision owner:ada tag:paper tag:draft") && !isMeant(LISTED, "tag:digits"));
});

test("only a plan that several share has a letter", () => {
  assert.deepEqual(sharedPlans(["x", "y", "x", "z", "y"]), ["A", "B", "A", "", "B"]);
});

test("each is chosen once, and no more than can be compared", () => {
  assert.deepEqual(chosenStudies("a,b,a,,c", 2), ["a", "b"]);
  assert.deepEqual(chosenStudies(undefined, 2), []);
});

test("tags are words, and attributes are lines whose values are JSON or text", () => {
  assert.deepEqual(wordsIn(" paper, draft  v3 "), ["paper", "draft", "v3"]);
  assert.deepEqual(attributesIn("n = 3\n\ndataset= v3=a\ngone ="), { n: 3, dataset: "v3=a", gone: null });
});
