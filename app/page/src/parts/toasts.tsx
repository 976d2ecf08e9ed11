/** Messages about actions, with an undo if there is one. They go away by themselves. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { refreshAll, type RequestError } from "../data.ts";

export interface Done {
  text: string;
  /** Reverts the action. Returns the message to show. */
  undo?: () => Promise<string>;
}

interface Toast extends Done {
  id: number;
  isError?: boolean;
}

const MILLISECONDS = 8000;
let lastId = 0;
const toasts = signal<Toast[]>([]);

export function showToast(done: Done, isError = false): void {
  lastId += 1;
  toasts.value = [...toasts.value, { ...done, id: lastId, isError }];
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

export function Toasts() {
  return (
    <section class="toasts" aria-label="Messages" aria-live="polite">
      {toasts.value.map((toast) => (
        <ToastLine key={toast.id} toast={toast} />
      ))}
    </section>
  );
}

function ToastLine({ toast }: { toast: Toast }) {
  useEffect(() => {
    const timer = setTimeout(() => dismiss(toast.id), MILLISECONDS);
    return () => clearTimeout(timer);
  }, [toast.id]);
  const undo = async () => {
    dismiss(toast.id);
    try {
      showToast({ text: await toast.undo!() });
      refreshAll();
    } catch (error) {
      showToast({ text: (error as RequestError).message }, true);
    }
  };
  return (
    <p class={`toast ${toast.isError ? "trouble" : ""}`}>
      <span>{toast.text}</span>
      {toast.undo && <button onClick={() => void undo()}>Undo</button>}
      <button class="plain" onClick={() => dismiss(toast.id)} aria-label="Dismiss">
        ×
      </button>
    </p>
  );
}
