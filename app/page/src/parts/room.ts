/** How much room there is: a drawing is as high as the window lets it be. */
import { signal } from "@preact/signals";

const windowHeight = signal(globalThis.innerHeight ?? 900);
globalThis.addEventListener?.("resize", () => (windowHeight.value = innerHeight));

/** A share of the window's height without so many pixels, which other things take; never under `least`. */
export function roomFor(least: number, taken: number, share = 1): number {
  return Math.max(least, Math.round(windowHeight.value * share) - taken);
}
