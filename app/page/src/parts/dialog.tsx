/** A question before something is done, and what came of it. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { refreshAll, type Trouble } from "../data.ts";

interface Props {
  title: string;
  verb: string;
  isGrave?: boolean;
  children: ComponentChildren;
  /** Does it, and says in a sentence what it did. */
  act: (form: FormData) => Promise<string>;
  close: () => void;
}

export function Dialog({ title, verb, isGrave, children, act, close }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [said, setSaid] = useState<{ text: string; isBad: boolean } | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => dialog.current?.showModal(), []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      setSaid({ text: await act(new FormData(event.target as HTMLFormElement)), isBad: false });
      refreshAll();
    } catch (error) {
      setSaid({ text: (error as Trouble).message, isBad: true });
    } finally {
      setBusy(false);
    }
  };
  const isDone = said !== null && !said.isBad;
  return (
    <dialog ref={dialog} onClose={close} aria-label={title}>
      <form onSubmit={submit}>
        <h2>{title}</h2>
        {!isDone && children}
        {said && (
          <p class={said.isBad ? "trouble" : "done"} role={said.isBad ? "alert" : "status"}>
            {said.text}
          </p>
        )}
        <div class="buttons">
          <button type="button" onClick={() => dialog.current?.close()}>
            {isDone ? "Close" : "Leave it"}
          </button>
          {!isDone && (
            <button class={isGrave ? "grave" : "main"} disabled={busy}>
              {verb}
            </button>
          )}
        </div>
      </form>
    </dialog>
  );
}
