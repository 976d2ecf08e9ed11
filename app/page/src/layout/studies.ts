/** The list of studies: search by words, shared search plans, and the parsing of tags and attributes. */
import type { Listed } from "../types.ts";

const FIELD = /^(state|name|from|project|owner|tag):(.*)$/;

/** Whether each word occurs in a field of the study; `state:running` searches one field. */
export function matchesWords(item: Listed, words: string): boolean {
  const fields: Record<string, string> = { state: item.state, name: item.name, from: item.begins, project: item.project, owner: item.owner, tag: (item.tags ?? []).join(" ") };
  const all = [item.study, ...Object.values(fields)].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).filter(Boolean).every((word) => {
    const [, name, value] = FIELD.exec(word) ?? [];
    return name ? (fields[name] ?? "").toLowerCase().includes(value!) : all.includes(word);
  });
}

/** The same letter for studies that share a search plan; "" for a plan of one study. */
export function planLetters(plans: string[]): string[] {
  const shared = [...new Set(plans.filter((plan, index) => plans.indexOf(plan) !== index))];
  return plans.map((plan) => (shared.includes(plan) ? String.fromCharCode(65 + (shared.indexOf(plan) % 26)) : ""));
}

/** Up to `most` distinct study ids from the query of an address. */
export function parseStudyIds(text: string | undefined, most: number): string[] {
  return [...new Set((text ?? "").split(",").filter(Boolean))].slice(0, most);
}

/** Words separated by spaces or commas. */
export function splitWords(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** Parses lines such as "dataset = v3". A value is JSON, or else a string. */
export function parseAttributes(text: string): Record<string, unknown> {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => {
      const [name = "", ...value] = line.split("=");
      return [name.trim(), parseValue(value.join("=").trim())];
    }),
  );
}

function parseValue(text: string): unknown {
  if (text === "") return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
