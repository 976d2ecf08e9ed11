/** The token of the page: the server keeps it in a cookie that no script can read. */
import { address, isTokenNeeded, refreshAll } from "./data.ts";
import { formatRoute, parseRoute, route } from "./route.ts";

/** Hand a token to the server. Returns why it was refused, or "" where it was not. */
export async function signIn(token: string): Promise<string> {
  let answer: Response;
  try {
    answer = await fetch(address("session"), { method: "POST", headers: { Authorization: `Bearer ${token.trim()}` } });
  } catch {
    return "The server does not answer.";
  }
  if (!answer.ok) return ((await answer.json()) as { detail: string }).detail;
  isTokenNeeded.value = false;
  refreshAll();
  return "";
}

/** Take the token out of an address that ends with #token=..., so that it is neither shown nor bookmarked. */
export async function signInByAddress(): Promise<void> {
  const [, token] = /^#\/?token=(.+)$/.exec(location.hash) ?? [];
  if (token === undefined) return;
  history.replaceState(null, "", formatRoute([]));
  route.value = parseRoute(location.hash);
  await signIn(decodeURIComponent(token));
}
