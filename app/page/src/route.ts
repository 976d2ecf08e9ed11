/** The route: the part of the address behind the # holds the view and all its settings, so every view can be linked to. */
import { computed, signal } from "@preact/signals";

type Query = Record<string, string>;

interface Route {
  path: string[];
  query: Query;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decodeURIComponent),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

export function formatRoute(path: string[], query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  const text = new URLSearchParams(given).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Views of a study that have moved: the old name, and the path of the view that has its content now. */
const MOVED = new Map([
  ["rung-tree", ["tree"]],
  ["rungs", ["tree", "rungs"]],
  ["slots", ["timeline"]],
  ["relations", ["importance"]],
]);

/** The route of the view that an address of an earlier version shows now. */
export function currentRoute({ path, query }: Route): Route {
  const [room, study, view = "", ...rest] = path;
  if (room !== "studies") return { path, query };
  if (view === "tree" && query["node"] && rest.length === 0) return { path: [room, study!, "tree", "stages"], query };
  const moved = MOVED.get(view);
  return { path: moved ? [room, study!, ...moved, ...rest] : path, query };
}

export const route = signal<Route>({ path: [], query: {} });

/** Read the address, and replace one of an earlier version. */
function readAddress(): void {
  const asked = parseRoute(globalThis.location?.hash ?? "");
  const now = currentRoute(asked);
  if (now.path !== asked.path) history.replaceState(null, "", formatRoute(now.path, now.query));
  route.value = now;
}

readAddress();
globalThis.addEventListener?.("hashchange", readAddress);

/** The position of the event after which the study is shown; null for its latest state. */
export const moment = computed<number | null>(() => {
  const at = Number(route.value.query["at"]);
  return Number.isInteger(at) && at > 0 ? at : null;
});

/** Change parameters of the query. With `replace` the change adds no entry to the browser's history. */
export function setQuery(changes: Query, { replace = true } = {}): void {
  const hash = formatRoute(route.value.path, { ...route.value.query, ...changes });
  if (replace) {
    history.replaceState(null, "", hash);
    route.value = parseRoute(hash);
  } else {
    location.hash = hash;
  }
}

/** The address of a view of a study. Links within a study keep the moment and the selected trials. */
export function studyLink(study: string, view: string[] = [], query: Query = {}): string {
  const { at = "", trials = "" } = route.value.query;
  const same = route.value.path[1] === study;
  return formatRoute(["studies", study, ...view], { ...(same ? { at, trials } : {}), ...query });
}

export const selectedTrials = computed<number[]>(() =>
  (route.value.query["trials"] ?? "").split(",").filter(Boolean).map(Number).filter(Number.isInteger),
);

export function toggleTrial(trial: number): void {
  const now = selectedTrials.value;
  const next = now.includes(trial) ? now.filter((each) => each !== trial) : [...now, trial];
  setQuery({ trials: next.join(",") });
}
