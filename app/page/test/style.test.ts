/** One type scale of four sizes, two weights, colours by name, and no motion for those who want none. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const SOURCE = new URL("../src/", import.meta.url);
const files = readdirSync(SOURCE, { recursive: true, encoding: "utf8" }).sort();
const read = (...endings: string[]) => files.filter((name) => endings.some((ending) => name.endsWith(ending))).map((name) => readFileSync(new URL(name, SOURCE), "utf8")).join("\n");
const [styles, scripts] = [read(".css"), read(".ts", ".tsx")];
const found = (text: string, pattern: RegExp) => [...new Set([...text.matchAll(pattern)].map((match) => match[1]!.trim()))].sort();

test("texts have four sizes and two weights, and figures have one width", () => {
  // 0 hides a text beside its symbol, and the size of the root, from which all follow, is larger on large screens
  assert.deepEqual(found(styles, /font-size:([^;]+);/g), ["0", "17px", "var(--hero)", "var(--small)", "var(--text)", "var(--title)"]);
  assert.deepEqual(found(styles, /font-weight:([^;]+);/g), ["400", "600"]);
  assert.match(styles, /:root \{[^}]*font-variant-numeric: tabular-nums/);
});

test("drawings have the small size, and two larger ones for symbols alone", () => {
  assert.deepEqual(found(scripts, /["`]([^"`]*px system-ui)/g), ["${12 * devicePixelRatio}px system-ui", "12px system-ui", "14px system-ui", "600 12px system-ui", "bold 18px system-ui"]);
});

test("colours have names, each in light and dark", () => {
  const rules = styles.replace(/:root \{[^}]*\}/, "");
  const plain = found(rules, /(?:color|background|fill|stroke|border[a-z-]*):[^;]*?(#[\da-f]{3,8})/g);
  assert.deepEqual(plain.filter((colour) => !rules.includes(`light-dark(${colour},`)), []);
  for (const [, name, value] of styles.matchAll(/(--(?:paper|raised|ink|soft|faint|line|accent|good|bad|warm|wash)): ([^;]+);/g)) assert.match(value!, /^light-dark\(#[\da-f]{6}, #[\da-f]{6}\)$/, name);
});

test("there is no motion for those who want none", () => {
  assert.match(styles, /@media \(prefers-reduced-motion: reduce\)/);
});
