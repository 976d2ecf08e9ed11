/** The light and dark theme, and the colours of canvas drawings. */
import { computed, signal } from "@preact/signals";

export type ThemeChoice = "auto" | "light" | "dark";

const media = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
const systemIsDark = signal(media?.matches ?? false);
media?.addEventListener("change", (event) => (systemIsDark.value = event.matches));

export const themeChoice = signal<ThemeChoice>(readTheme());
export const isDark = computed(() => (themeChoice.value === "auto" ? systemIsDark.value : themeChoice.value === "dark"));

function readTheme(): ThemeChoice {
  try {
    return (localStorage.getItem("stagetree theme") as ThemeChoice | null) ?? "auto";
  } catch {
    return "auto";
  }
}

export function setTheme(next: ThemeChoice): void {
  themeChoice.value = next;
  document.documentElement.style.colorScheme = next === "auto" ? "light dark" : next;
  try {
    localStorage.setItem("stagetree theme", next);
  } catch {
    // a page in a frame may have no storage: the choice is lost on reload
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

/** Okabe and Ito's palette for colour-blind readers, adapted to each background. */
const SERIES_LIGHT = ["#0072b2", "#d55e00", "#007f5f", "#a8497f", "#8a6d00", "#3a8fc4", "#5c6570", "#1d2126"];
const SERIES_DARK = ["#56b4e9", "#ff8a4c", "#2fc49b", "#e39cc4", "#e6c229", "#8fb8de", "#a0a9b4", "#e6e9ed"];

export function seriesColour(index: number): string {
  const colours = isDark.value ? SERIES_DARK : SERIES_LIGHT;
  return colours[index % colours.length]!;
}

/** From low to high: dark blue, teal, yellow. On a dark background high values are the brightest. */
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
