/** Heights of drawings that depend on the height of the window. */
import { signal } from "@preact/signals";

const windowHeight = signal(globalThis.innerHeight ?? 900);
globalThis.addEventListener?.("resize", () => (windowHeight.value = innerHeight));

/** A share of the window's height minus `taken` pixels, but at least `least`. */
export function fitHeight(least: number, taken: number, share = 1): number {
  return Math.max(least, Math.round(windowHeight.value * share) - taken);
}
