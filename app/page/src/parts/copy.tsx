/** A button that copies text, and says so. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

const SAID_MILLISECONDS = 2000;

export function CopyButton({ text, children }: { text: string; children: ComponentChildren }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    const copied = await copyText(text);
    setSaid(copied ? "Copied" : "The browser does not allow copying");
    setTimeout(() => setSaid(""), SAID_MILLISECONDS);
  };
  return (
    <>
      <button onClick={() => void copy()} title={text}>
        {said || children}
      </button>
      <span role="status" class="hidden">
        {said}
      </span>
    </>
  );
}

/** Whether it is in the clipboard now: a page that came over plain HTTP from another machine has none. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
