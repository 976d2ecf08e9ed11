/** The search in the list of studies, shared search plans, tags and attributes. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { parseAttributes, parseStudyIds, matchesWords, planLetters, splitWords } from "../src/layout/studies.ts";
import type { Listed } from "../src/types.ts";

const LISTED = { study: "digits-3f", name: "digits", state: "running", begins: "", project: "vision", owner: "ada", tags: ["paper", "draft"] } as Listed;

test("each word must occur, and a field can be searched alone", () => {
  assert.ok(matchesWords(LISTED, "") && matchesWords(LISTED, "DIGITS state:run"));
  assert.ok(!matchesWords(LISTED, "digits state:completed") && !matchesWords(LISTED, "state:digits"));
  assert.ok(matchesWords(LISTED, "project:vision owner:ada tag:paper tag:draft") && !matchesWords(LISTED, "tag:digits"));
});

test("only shared plans have a letter", () => {
  assert.deepEqual(planLetters(["x", "y", "x", "z", "y"]), ["A", "B", "A", "", "B"]);
});

test("selected ids are distinct, up to the limit", () => {
  assert.deepEqual(parseStudyIds("a,b,a,,c", 2), ["a", "b"]);
  assert.deepEqual(parseStudyIds(undefined, 2), []);
});

test("tags are words, and attributes are lines with values of JSON or text", () => {
  assert.deepEqual(splitWords(" paper, draft  v3 "), ["paper", "draft", "v3"]);
  assert.deepEqual(parseAttributes("n = 3\n\ndataset= v3=a\ngone ="), { n: 3, dataset: "v3=a", gone: null });
});
