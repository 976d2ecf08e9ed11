/** Thousands of rows, of which only those in sight are there. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export const ROW_PIXELS = 30;
const BEYOND = 8;
const GAP_REM = 0.9;

interface Props {
  count: number;
  label: string;
  /** Of each column, in rem. */
  widths: number[];
  head: ComponentChildren;
  row: (index: number) => ComponentChildren;
}

export function Rows({ count, label, widths, head, row }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  useEffect(() => {
    const element = box.current!;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const columns = widths.map((width, index) => (index + 1 < widths.length ? `${width}rem` : `minmax(${width}rem, 1fr)`));
  const first = Math.max(0, Math.floor(top / ROW_PIXELS) - BEYOND);
  const last = Math.min(count, Math.ceil((top + height) / ROW_PIXELS) + BEYOND);
  const pool = Math.ceil(height / ROW_PIXELS) + 2 * BEYOND + 1; // so many rows are made, and used again
  const shown = Array.from({ length: Math.max(0, last - first) }, (_, index) => first + index);
  return (
    <div
      ref={box}
      class="rows"
      role="table"
      aria-label={label}
      aria-rowcount={count + 1}
      tabIndex={0}
      style={{ "--columns": columns.join(" "), "--width": `${widths.reduce((sum, width) => sum + width + GAP_REM, 0)}rem` }}
      onScroll={(event) => setTop(Math.floor(event.currentTarget.scrollTop / ROW_PIXELS) * ROW_PIXELS)}
    >
      <div role="rowgroup" class="head">
        <div role="row" aria-rowindex={1} class="row">
          {head}
        </div>
      </div>
      <div role="rowgroup" class="body" style={{ height: `${count * ROW_PIXELS}px` }}>
        {shown.map((index) => (
          <div
            role="row"
            key={index % pool}
            aria-rowindex={index + 2}
            class="row"
            style={{ transform: `translateY(${index * ROW_PIXELS}px)` }}
          >
            {row(index)}
          </div>
        ))}
      </div>
    </div>
  );
}
