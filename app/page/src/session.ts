/** Sign-in by token. The server stores the token in an HttpOnly cookie. */
import { address, isTokenNeeded, refreshAll } from "./data.ts";
import { formatRoute, parseRoute, route } from "./route.ts";

/** Send a token to the server. Returns the error message, or "". */
export async function signIn(token: string): Promise<string> {
  let answer: Response;
  try {
    answer = await fetch(address("session"), { method: "POST", headers: { Authorization: `Bearer ${token.trim()}` } });
  } catch {
    return "The server does not respond.";
  }
  if (!answer.ok) return ((await answer.json()) as { detail: string }).detail;
  isTokenNeeded.value = false;
  refreshAll();
  return "";
}

/** Sign in with the token of an address that ends with #token=..., and remove it from the address and the history. */
export async function signInByAddress(): Promise<void> {
  const [, token] = /^#\/?token=(.+)$/.exec(location.hash) ?? [];
  if (token === undefined) return;
  history.replaceState(null, "", formatRoute([]));
  route.value = parseRoute(location.hash);
  await signIn(decodeURIComponent(token));
}
