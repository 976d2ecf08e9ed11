/** Keys of the whole page: `/` searches, j and k go through rows, and g with a letter goes to a view. `?` lists them. */
import { showToast } from "./parts/toasts.tsx";
import { formatRoute, route, studyLink } from "./route.ts";

const ROOMS: Record<string, string[]> = { s: [], l: ["slots"] };
const VIEWS: Record<string, string[]> = { o: [], t: ["trials"], c: ["curves"], r: ["tree"], i: ["importance"], m: ["timeline"], e: ["events"] };
const HELP = "/ search · j, k next and previous row, Enter opens it · g s studies · g l slots · in a study g o overview, g t trials, g c curves, g r tree, g i importance, g m timeline, g e events";
/** How long after g its letter may come. */
const CHORD_MILLISECONDS = 1500;
const ROWS = "main tbody th a, main .rows .body a, main .events summary";
const FIELDS = "input, select, textarea, [contenteditable]";

let chordSince = 0;

export function listenForKeys(): void {
  document.addEventListener("keydown", (event) => {
    const isOwn = event.ctrlKey || event.metaKey || event.altKey || (event.target as Element).closest?.(FIELDS) || document.querySelector("dialog[open]");
    if (!isOwn && handleKey(event.key)) event.preventDefault();
  });
}

/** Whether the key does something here. */
function handleKey(key: string): boolean {
  const isChord = Date.now() - chordSince < CHORD_MILLISECONDS;
  chordSince = key === "g" && !isChord ? Date.now() : 0;
  if (isChord) return goTo(key);
  if (key === "/") return focusSearch();
  if (key === "j" || key === "k") return moveRow(key === "j" ? 1 : -1);
  if (key === "?") showToast({ text: HELP });
  return key === "?" || key === "g";
}

function goTo(letter: string): boolean {
  const [room, study] = route.value.path;
  const view = room === "studies" && study ? VIEWS[letter] : undefined;
  if (view) location.hash = studyLink(study!, view);
  else if (ROOMS[letter]) location.hash = formatRoute(ROOMS[letter]);
  return Boolean(view ?? ROOMS[letter]);
}

function focusSearch(): boolean {
  const field = document.querySelector<HTMLElement>("main input[type=search]");
  field?.focus();
  return field !== null;
}

function moveRow(by: number): boolean {
  const top = (row: Element) => row.getBoundingClientRect().top;
  const rows = [...document.querySelectorAll<HTMLElement>(ROWS)].filter((row) => row.checkVisibility()).sort((a, b) => top(a) - top(b));
  const now = rows.indexOf(document.activeElement as HTMLElement);
  const next = rows[now < 0 ? (by > 0 ? 0 : rows.length - 1) : now + by];
  next?.focus();
  return next !== undefined;
}
