/** Studies of a list: which are meant by some words, and which share a search plan. */
import type { Listed } from "../types.ts";

const FIELD = /^(state|name|from|project|owner|tag):(.*)$/;

/** Whether a study is meant: each word is in its id, name, state or origin; `state:running` looks into one field. */
export function isMeant(item: Listed, words: string): boolean {
  const fields: Record<string, string> = { state: item.state, name: item.name, from: item.begins, project: item.project, owner: item.owner, tag: (item.tags ?? []).join(" ") };
  const all = [item.study, ...Object.values(fields)].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).filter(Boolean).every((word) => {
    const [, name, value] = FIELD.exec(word) ?? [];
    return name ? (fields[name] ?? "").toLowerCase().includes(value!) : all.includes(word);
  });
}

/** A letter for each plan that several of them share; nothing for a plan of one's own. */
export function sharedPlans(plans: string[]): string[] {
  const shared = [...new Set(plans.filter((plan, index) => plans.indexOf(plan) !== index))];
  return plans.map((plan) => (shared.includes(plan) ? String.fromCharCode(65 + (shared.indexOf(plan) % 26)) : ""));
}

/** The ids that are chosen, as the address has them: at most so many, each once. */
export function chosenStudies(text: string | undefined, most: number): string[] {
  return [...new Set((text ?? "").split(",").filter(Boolean))].slice(0, most);
}

/** The words of a text, with spaces or commas between them. */
export function wordsIn(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** Lines such as "dataset = v3"; a value is JSON, or else a string. */
export function attributesIn(text: string): Record<string, unknown> {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => {
      const [name = "", ...value] = line.split("=");
      return [name.trim(), valueOf(value.join("=").trim())];
    }),
  );
}

function valueOf(text: string): unknown {
  if (text === "") return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
