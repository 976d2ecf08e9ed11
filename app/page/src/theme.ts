/** Light or dark, and the colours of what is drawn on canvases. */
import { computed, signal } from "@preact/signals";

export type Choice = "auto" | "light" | "dark";

const media = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
const systemIsDark = signal(media?.matches ?? false);
media?.addEventListener("change", (event) => (systemIsDark.value = event.matches));

export const choice = signal<Choice>(read());
export const isDark = computed(() => (choice.value === "auto" ? systemIsDark.value : choice.value === "dark"));

function read(): Choice {
  try {
    return (localStorage.getItem("stagetree theme") as Choice | null) ?? "auto";
  } catch {
    return "auto";
  }
}

export function choose(next: Choice): void {
  choice.value = next;
  document.documentElement.style.colorScheme = next === "auto" ? "light dark" : next;
  try {
    localStorage.setItem("stagetree theme", next);
  } catch {
    // a page in a frame may have no storage: the choice holds as long as the page
  }
}

export interface Palette {
  paper: string;
  ink: string;
  soft: string;
  faint: string;
  line: string;
  accent: string;
  good: string;
  bad: string;
  warm: string;
}

const LIGHT: Palette = {
  paper: "#fdfdfc",
  ink: "#1d2126",
  soft: "#5c6570",
  faint: "#a4acb6",
  line: "#dfe3e8",
  accent: "#1f63d0",
  good: "#00795a",
  bad: "#c23a00",
  warm: "#8f5a00",
};

const DARK: Palette = {
  paper: "#14171b",
  ink: "#e6e9ed",
  soft: "#a0a9b4",
  faint: "#5f6974",
  line: "#2b3138",
  accent: "#78a9ff",
  good: "#3fbf95",
  bad: "#ff8a5c",
  warm: "#e5ab4a",
};

export const palette = computed<Palette>(() => (isDark.value ? DARK : LIGHT));

/** Okabe and Ito's colours, which the colour-blind can tell apart; the one for each theme is legible on its paper. */
const SERIES_LIGHT = ["#0072b2", "#d55e00", "#007f5f", "#a8497f", "#8a6d00", "#3a8fc4", "#5c6570", "#1d2126"];
const SERIES_DARK = ["#56b4e9", "#ff8a4c", "#2fc49b", "#e39cc4", "#e6c229", "#8fb8de", "#a0a9b4", "#e6e9ed"];

export function series(index: number): string {
  const colours = isDark.value ? SERIES_DARK : SERIES_LIGHT;
  return colours[index % colours.length]!;
}

/** Low to high: dark blue over teal to yellow, turned round on dark paper, so that more is always further from it. */
const SCALE = ["#2b3a8c", "#2b6a9f", "#2a8f95", "#57ad70", "#b0bd3c"];
const SCALE_DARK = ["#4f63d6", "#4393d8", "#3dbdb8", "#86d67f", "#f2e55c"];

export function scale(share: number): string {
  const colours = isDark.value ? SCALE_DARK : SCALE;
  const at = Math.min(1, Math.max(0, share)) * (colours.length - 1);
  const low = Math.min(Math.floor(at), colours.length - 2);
  return mix(colours[low]!, colours[low + 1]!, at - low);
}

function mix(from: string, to: string, share: number): string {
  const part = (text: string, index: number) => parseInt(text.slice(1 + 2 * index, 3 + 2 * index), 16);
  const parts = [0, 1, 2].map((index) => Math.round(part(from, index) * (1 - share) + part(to, index) * share));
  return `rgb(${parts.join(" ")})`;
}
