/** A state as a shape and a word, and the mark of a number that is not proven. */
import { MARKS } from "../format.ts";

export function State({ state }: { state: string }) {
  return (
    <span class={`state ${state}`}>
      <span aria-hidden="true">{MARKS[state] ?? "·"}</span> {state}
    </span>
  );
}

/** Behind a number that is not proven to be exact: why stands in its title, and with the study. */
export function Unproven({ text }: { text: string | null | undefined }) {
  return text ? <abbr title={text}>*</abbr> : null;
}
