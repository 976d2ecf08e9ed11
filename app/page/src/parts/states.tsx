/** States with their symbols, and footnotes for results that are unverified or may be wrong. */
import { STATE_SYMBOLS } from "../format.ts";

export function State({ state }: { state: string }) {
  return (
    <span class={`state ${state}`}>
      <span aria-hidden="true">{STATE_SYMBOLS[state] ?? "·"}</span> {state}
    </span>
  );
}

interface Signs {
  /** Sign by text, from `footnoteSigns`. */
  signs: Map<string, string>;
}

/** The footnote sign beside a number. */
export function Mark({ text, signs }: Signs & { text: string | null | undefined }) {
  return text ? <abbr title={text}>{signs.get(text) ?? "*"}</abbr> : null;
}

/** The footnote texts. Touch screens have no tooltips. */
export function Footnotes({ signs }: Signs) {
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
