/** A button that copies text to the clipboard and confirms it. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

const MESSAGE_MILLISECONDS = 2000;

export function CopyButton({ text, children }: { text: string; children: ComponentChildren }) {
  const [message, setMessage] = useState("");
  const copy = async () => {
    const copied = await copyText(text);
    setMessage(copied ? "Copied" : "The browser does not allow copying");
    setTimeout(() => setMessage(""), MESSAGE_MILLISECONDS);
  };
  return (
    <>
      <button onClick={() => void copy()} title={text}>
        {message || children}
      </button>
      <span role="status" class="hidden">
        {message}
      </span>
    </>
  );
}

/** Whether the text was copied. Pages over plain HTTP have no clipboard, except on localhost. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
