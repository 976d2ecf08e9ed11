/** The sign-in form, shown instead of a view if the server requires a token. */
import { useState } from "preact/hooks";
import { Panel } from "../parts/panel.tsx";
import { signIn } from "../session.ts";

export function SignIn() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    setProblem(await signIn(token));
  }

  return (
    <Panel title="This server requires a token">
      <form class="sign-in" onSubmit={(event) => void submit(event)}>
        <label>
          Token{" "}
          <input type="password" autocomplete="current-password" required value={token} onInput={(event) => setToken(event.currentTarget.value)} />
        </label>{" "}
        <button class="main" type="submit">
          Sign in
        </button>
        {problem && <p class="bad" role="alert">{problem}</p>}
        <p>
          Create one on the server with <code>stagetree token create NAME</code>. <code>stagetree up --host</code> prints an address with a token.
        </p>
      </form>
    </Panel>
  );
}
