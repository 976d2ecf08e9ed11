/** The layers of the page: views import parts, parts import layouts, and there are no import cycles. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";

const SRC = join(import.meta.dirname, "..", "src");
const IMPORT = /^(?:import|export) [^;]*?from "(\.[^"]+)";/gm;

const all = readdirSync(SRC, { recursive: true, encoding: "utf8" });
const files = all.filter((name) => /\.tsx?$/.test(name) && !name.endsWith(".d.ts"));
const imports = new Map(
  files.map((file) => {
    const found = readFileSync(join(SRC, file), "utf8").matchAll(IMPORT);
    return [file, [...found].map(([, path]) => normalize(join(dirname(file), path!)))];
  }),
);

function findCycle(file: string, path: string[] = [], done = new Set<string>()): string[] | null {
  if (path.includes(file)) return [...path.slice(path.indexOf(file)), file];
  if (done.has(file)) return null;
  for (const next of imports.get(file) ?? []) {
    const found = findCycle(next, [...path, file], done);
    if (found) return found;
  }
  done.add(file);
  return null;
}

test("each import is of an existing file", () => {
  assert.ok(imports.get("views/study.tsx")!.length > 10);
  const missing = [...imports.values()].flat().filter((path) => /\.tsx?$/.test(path) && !path.endsWith(".d.ts") && !imports.has(path));
  assert.deepEqual(missing, []);
});

test("there are no import cycles", () => {
  assert.deepEqual(files.map((file) => findCycle(file)).filter(Boolean), []);
});

test("layouts do not import parts, and parts do not import views", () => {
  const upwards = (folder: string, above: string[]) =>
    files.filter((file) => file.startsWith(folder) && imports.get(file)!.some((path) => above.some((each) => path.startsWith(each))));
  assert.deepEqual(upwards("layout/", ["parts/", "views/"]), []);
  assert.deepEqual(upwards("parts/", ["views/"]), []);
});

test("style.css imports each style sheet", () => {
  const listed = [...readFileSync(join(SRC, "style.css"), "utf8").matchAll(/@import "\.\/([^"]+)"/g)].map(([, path]) => path!);
  assert.deepEqual([...listed, "style.css"].sort(), all.filter((name) => name.endsWith(".css")).sort());
});
