/** How results were verified, as a small badge. The sentence about it opens below. */
import { CodeText } from "./code_text.tsx";

const SYMBOLS: Record<string, string> = { verified: "✓", checked: "✓", unchecked: "△", inexact: "✕", unshared: "○" };
const NAMES: Record<string, string> = { unshared: "nothing shared" };
const VERDICT_TEXTS: Record<string, string> = {
  verified: "Training around every branching step and of one whole trial was repeated in another way: all bits were equal.",
  checked: "Training around every branching step was repeated in another way: all bits were equal.",
  unchecked: "Some trials resumed from a checkpoint that was not verified. They are marked. An audit verifies them.",
  inexact: "Training that resumed from a checkpoint differed from uninterrupted training.",
  unshared: "No trial resumed from a checkpoint or shares steps with another trial.",
};

interface Props {
  verdict: string;
  text: string;
  /** Why this result is not verified, if it is not. */
  about?: string | null | undefined;
}

export function Verification({ verdict, text, about }: Props) {
  if (!text && !about) return null;
  return (
    <details class={`verification ${verdict}`}>
      <summary>
        <span aria-hidden="true">{SYMBOLS[verdict] ?? "○"}</span> {NAMES[verdict] ?? verdict}
      </summary>
      <div>
        {text && (
          <p>
            Exactness: <CodeText text={text} />
          </p>
        )}
        {about && about !== text && <p>This result: {about}</p>}
        <p class="quiet">{VERDICT_TEXTS[verdict]}</p>
      </div>
    </details>
  );
}
