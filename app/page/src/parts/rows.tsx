/** A virtual table: a fixed pool of row elements shows the visible part of thousands of rows. */
import { batch, computed, signal, type Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { memo } from "preact/compat";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

const ROW_PIXELS = 30;
const EXTRA_ROWS = 6;
const GAP_REM = 0.9;
const SCROLLBAR_PIXELS = 16;

interface Props {
  count: number;
  label: string;
  /** Column widths in rem. */
  widths: number[];
  head: ComponentChildren;
  /** Renders the cells of a row, as wide as `widths`, once for each element of the pool. The signal is the index of the row that the element shows. */
  row: (index: Signal<number>) => ComponentChildren;
}

export function Rows({ count, label, widths, head, row }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [height, setHeight] = useState(600);
  const [, setSettled] = useState(0);
  useEffect(() => {
    const element = box.current!;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const size = Math.min(count, Math.ceil(height / ROW_PIXELS) + 2 * EXTRA_ROWS);
  const pool = useMemo(() => Array.from({ length: size }, (_, index) => signal(index)), [size]);
  const show = () => {
    const first = Math.floor((box.current?.scrollTop ?? 0) / ROW_PIXELS) - EXTRA_ROWS;
    const from = Math.max(0, Math.min(count - size, first));
    batch(() => {
      for (let index = from; index < from + size; index += 1) pool[index % size]!.value = index;
    });
  };
  useEffect(show, [pool, count]);
  const columns = widths.map((width, index) => (index + 1 < widths.length ? `${width}rem` : `minmax(${width}rem, 1fr)`));
  return (
    <div
      ref={box}
      class="rows"
      role="table"
      aria-label={label}
      aria-rowcount={count + 1}
      tabIndex={0}
      style={{
        "--columns": columns.join(" "),
        "--width": `${widths.reduce((sum, width) => sum + width + GAP_REM, 0)}rem`,
        "--needed": `${(count + 1) * ROW_PIXELS + SCROLLBAR_PIXELS}px`,
      }}
      onScroll={show}
      onScrollEnd={() => setSettled((times) => times + 1)}
    >
      <div role="rowgroup" class="head">
        <div role="row" aria-rowindex={1} class="row">
          {head}
        </div>
      </div>
      <div role="rowgroup" class="body" style={{ height: `${count * ROW_PIXELS}px` }}>
        {sortByRow(pool).map((index) => (
          <Row key={pool.indexOf(index)} index={index} row={row} />
        ))}
      </div>
    </div>
  );
}

/** In the order of screen readers and Tab. While the table scrolls, the DOM order may differ. */
function sortByRow(pool: Signal<number>[]): Signal<number>[] {
  return [...pool].sort((a, b) => a.peek() - b.peek());
}

const Row = memo(function Row({ index, row }: { index: Signal<number>; row: Props["row"] }) {
  const place = useMemo(() => computed(() => `transform: translateY(${index.value * ROW_PIXELS}px)`), [index]);
  const number = useMemo(() => computed(() => index.value + 2), [index]);
  return (
    <div role="row" aria-rowindex={number} class="row" style={place}>
      {row(index)}
    </div>
  );
});
