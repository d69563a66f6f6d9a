/** Signing in: with the token of the address that `evsys dashboard` printed, or with an API key. */

import { useEffect, useState } from "react";

import { ask, exported, Problem, tell } from "./api/client";
import type { PageSession } from "./api/types";
import { Command } from "./parts/basics";

/** The token of `#token=...`; it is removed from the address at once, so that it ends up in no history. */
function takeToken(): string {
  const found = /^#token=([^&]+)/.exec(window.location.hash)?.[1] ?? "";
  if (found) window.history.replaceState(null, "", "#/");
  return decodeURIComponent(found);
}

export function useSession() {
  const [session, setSession] = useState<PageSession | null>(exported?.session ?? null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const signIn = async (token: string) => {
    try {
      setSession(await tell<PageSession>("POST", "/session", { token }));
      setProblem(null);
    } catch (error) {
      setProblem(error as Problem);
    }
  };
  useEffect(() => {
    if (exported) return;
    const token = takeToken();
    if (token) void signIn(token);
    else ask<PageSession>("/session").then(setSession, setProblem);
  }, []);
  return { session, problem, signIn };
}

export function SignIn({ problem, signIn }: { problem: Problem; signIn: (token: string) => Promise<void> }) {
  const [token, setToken] = useState("");
  return (
    <main id="main">
      <form
        className="empty"
        onSubmit={(event) => {
          event.preventDefault();
          void signIn(token.trim());
        }}
      >
        <strong>{problem.status === 401 ? "Sign in" : "No connection"}</strong>
        <p role="alert">
          {problem.status === 401
            ? "Open the address that this command prints, or paste its token or an API key:"
            : problem.message}
        </p>
        <Command text="evsys dashboard" />
        <div className="row">
          <input type="password" value={token} onChange={(event) => setToken(event.target.value)} aria-label="token or API key" placeholder="token or API key" autoComplete="off" />
          <button type="submit" className="primary" disabled={!token.trim()}>
            sign in
          </button>
        </div>
      </form>
    </main>
  );
}
