/** A button that opens a list of links and buttons. A press outside, Escape or the choice of an item closes it. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Props {
  title: string;
  isCurrent?: boolean;
  class?: string;
  children: ComponentChildren;
}

export function Menu({ title, isCurrent = false, class: name = "", children }: Props) {
  const menu = useRef<HTMLDetailsElement>(null);
  const close = () => void (menu.current!.open = false);
  useEffect(() => {
    const leave = (event: Event) => !menu.current?.contains(event.target as Node) && close();
    document.addEventListener("pointerdown", leave);
    return () => document.removeEventListener("pointerdown", leave);
  }, []);
  const escape = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !menu.current!.open) return;
    close();
    menu.current!.querySelector("summary")!.focus();
  };
  return (
    <details ref={menu} class={`menu ${name}`} onKeyDown={escape}>
      <summary aria-current={isCurrent ? "page" : undefined}>
        {title} <span aria-hidden="true">▾</span>
      </summary>
      <ul onClick={close}>{children}</ul>
    </details>
  );
}
