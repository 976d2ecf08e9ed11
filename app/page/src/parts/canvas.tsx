/** A canvas in device pixels that fills its container. It is redrawn when its size, the theme or `draw` change. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Size } from "../layout/scales.ts";
import { palette, type Palette } from "../theme.ts";
import { SaveChart, type ChartData } from "./save_chart.tsx";

export type { Size };

interface Props {
  height: number;
  label: string;
  draw: (context: CanvasRenderingContext2D, size: Size, colours: Palette) => void;
  onPoint?: (x: number, y: number, event: PointerEvent) => void;
  onLeave?: () => void;
  onPick?: (x: number, y: number, event: MouseEvent) => void;
  onKeyDown?: (event: KeyboardEvent) => void;
  onWheel?: (event: WheelEvent) => void;
  class?: string;
  /** What can be saved of the chart; without it there is no menu. */
  data?: ChartData;
}

export function Canvas({ height, label, draw, onPoint, onLeave, onPick, onKeyDown, onWheel, class: name, data }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(canvas);
  const colours = palette.value;
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || !width) return;
    const ratio = devicePixelRatio || 1;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    draw(context, { width, height }, colours);
  }, [draw, width, height, colours]);
  useEffect(() => {
    const element = canvas.current;
    if (!element || !onWheel) return;
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, [onWheel]);
  return (
    <>
      <canvas
        ref={canvas}
        class={`drawing ${name ?? ""}`}
        style={{ height: `${height}px` }}
        role="img"
        aria-label={label}
        tabIndex={onKeyDown ? 0 : undefined}
        onPointerMove={onPoint && ((event) => onPoint(event.offsetX, event.offsetY, event))}
        onPointerLeave={onLeave}
        onClick={onPick && ((event) => onPick(event.offsetX, event.offsetY, event))}
        onKeyDown={onKeyDown}
      />
      {data && width > 0 && <SaveChart data={data} size={() => ({ width, height })} draw={draw} />}
    </>
  );
}

function useWidth(canvas: { current: HTMLCanvasElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 0)));
    observer.observe(element);
    return () => observer.disconnect();
  }, [canvas]);
  return width;
}

/** A tooltip beside the pointer. */
export function Tip({ x, y, width, children }: { x: number; y: number; width: number; children: preact.ComponentChildren }) {
  const side = x > width / 2 ? { right: `${Math.max(0, width - x + 12)}px` } : { left: `${x + 12}px` };
  return (
    <div class="tip" style={{ ...side, top: `${y + 8}px` }} role="status">
      {children}
    </div>
  );
}

/** Cut a text to a width in pixels. */
export function shortenText(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  const letters = Math.floor((text.length * width) / context.measureText(text).width) - 1;
  return letters > 0 ? `${text.slice(0, letters)}…` : "";
}
