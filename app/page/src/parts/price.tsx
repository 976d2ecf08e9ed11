/** The price of what a form asks for, in new steps, before it is asked for. */
import { useEffect, useRef, useState } from "preact/hooks";
import { send, type RequestError } from "../data.ts";
import { count, plural } from "../format.ts";
import type { Branch } from "../types.ts";

const PAUSE_MILLISECONDS = 300;

/** The sentence to show, `first` to begin with, and what a dialog calls with its form after each change. path: the route that answers the price. */
export function usePrice(path: string, body: (form: FormData) => unknown, first = "The price is shown as you type."): [string, (form: FormData) => void] {
  const [sentence, setSentence] = useState(first);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const ask = async (form: FormData) => {
    try {
      setSentence(priceText(await send<Branch>("POST", path, body(form))));
    } catch (error) {
      setSentence((error as Error | RequestError).message);
    }
  };
  const askLater = (form: FormData) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => void ask(form), PAUSE_MILLISECONDS);
  };
  return [sentence, askLater];
}

export function Price({ sentence }: { sentence: string }) {
  return (
    <p class="quiet" role="status">
      {sentence}
    </p>
  );
}

function priceText({ steps, shared, new: fresh, again }: Branch): string {
  return `${plural(fresh, "new step")} of ${count(steps)}; ${count(shared)} are shared${again ? `, and ${count(again)} are trained again` : ""}.`;
}
