/** A dialog that confirms an action. When the action succeeds it closes, and a message reports it. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { refreshAll, type RequestError } from "../data.ts";
import { showToast, type Done } from "./toasts.tsx";

interface Props {
  title: string;
  verb: string;
  isDestructive?: boolean;
  children: ComponentChildren;
  /** Performs the action. Returns the message to show, with the way back if there is one. */
  act: (form: FormData) => Promise<string | Done>;
  close: () => void;
  /** Called with the form when a field changes. */
  onInput?: (form: FormData) => void;
}

export function Dialog({ title, verb, isDestructive, children, act, close, onInput }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => dialog.current?.showModal(), []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const done = await act(new FormData(event.target as HTMLFormElement));
      showToast(typeof done === "string" ? { text: done } : done);
      refreshAll();
      dialog.current?.close();
    } catch (problem) {
      setError((problem as RequestError).message);
    } finally {
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} onClose={close} aria-label={title}>
      <form onSubmit={submit} onInput={onInput && ((event) => onInput(new FormData(event.currentTarget)))}>
        <h2>{title}</h2>
        {children}
        {error && (
          <p class="trouble" role="alert">
            {error}
          </p>
        )}
        <div class="buttons">
          <button type="button" onClick={() => dialog.current?.close()}>
            Back
          </button>
          <button class={isDestructive ? "grave" : "main"} disabled={busy}>
            {verb}
          </button>
        </div>
      </form>
    </dialog>
  );
}
