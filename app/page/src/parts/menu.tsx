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
  useEffect(() => {
    const close = () => void (menu.current!.open = false);
    const leave = (event: Event) => !menu.current!.contains(event.target as Node) && close();
    const choose = (event: Event) => (event.target as Element).closest("ul")?.parentElement === menu.current && close();
    const escape = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || !menu.current!.open) return;
      close();
      menu.current!.querySelector("summary")!.focus();
    };
    document.addEventListener("pointerdown", leave);
    document.addEventListener("click", choose);
    document.addEventListener("keydown", escape);
    return () => {
      document.removeEventListener("pointerdown", leave);
      document.removeEventListener("click", choose);
      document.removeEventListener("keydown", escape);
    };
  }, []);
  return (
    <details ref={menu} class={`menu ${name}`}>
      <summary aria-current={isCurrent ? "page" : undefined}>
        {title} <span aria-hidden="true">▾</span>
      </summary>
      <ul>{children}</ul>
    </details>
  );
}
