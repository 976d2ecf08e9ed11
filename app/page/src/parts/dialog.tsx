/** A confirmation dialog, which shows the result of its action. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { refreshAll, type RequestError } from "../data.ts";

interface Props {
  title: string;
  verb: string;
  isDestructive?: boolean;
  children: ComponentChildren;
  /** Performs the action. Returns the message to show. */
  act: (form: FormData) => Promise<string>;
  close: () => void;
}

export function Dialog({ title, verb, isDestructive, children, act, close }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [result, setResult] = useState<{ text: string; isError: boolean } | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => dialog.current?.showModal(), []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      setResult({ text: await act(new FormData(event.target as HTMLFormElement)), isError: false });
      refreshAll();
    } catch (error) {
      setResult({ text: (error as RequestError).message, isError: true });
    } finally {
      setBusy(false);
    }
  };
  const isDone = result !== null && !result.isError;
  return (
    <dialog ref={dialog} onClose={close} aria-label={title}>
      <form onSubmit={submit}>
        <h2>{title}</h2>
        {!isDone && children}
        {result && (
          <p class={result.isError ? "trouble" : "done"} role={result.isError ? "alert" : "status"}>
            {result.text}
          </p>
        )}
        <div class="buttons">
          <button type="button" onClick={() => dialog.current?.close()}>
            {isDone ? "Close" : "Back"}
          </button>
          {!isDone && (
            <button class={isDestructive ? "grave" : "main"} disabled={busy}>
              {verb}
            </button>
          )}
        </div>
      </form>
    </dialog>
  );
}
