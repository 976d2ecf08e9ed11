/** A state as a shape and a word, and the mark beside a number that was not compared or may be wrong. */
import { MARKS } from "../format.ts";

export function State({ state }: { state: string }) {
  return (
    <span class={`state ${state}`}>
      <span aria-hidden="true">{MARKS[state] ?? "·"}</span> {state}
    </span>
  );
}

interface Marked {
  /** The sign of each sentence: see `signsOf`. */
  signs: Map<string, string>;
}

/** Behind a number that has a mark: a sign, whose sentence `Footnotes` shows nearby. */
export function Mark({ text, signs }: Marked & { text: string | null | undefined }) {
  return text ? <abbr title={text}>{signs.get(text) ?? "*"}</abbr> : null;
}

/** What the signs mean, for all to read: on a touch screen there is no hovering. */
export function Footnotes({ signs }: Marked) {
  return (
    <>
      {[...signs].map(([text, sign]) => (
        <p class="quiet" key={text}>
          {sign} {text}
        </p>
      ))}
    </>
  );
}
