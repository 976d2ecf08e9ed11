/** A state as a shape and a word. */
import { MARKS } from "../format.ts";

export function State({ state }: { state: string }) {
  return (
    <span class={`state ${state}`}>
      <span aria-hidden="true">{MARKS[state] ?? "·"}</span> {state}
    </span>
  );
}
