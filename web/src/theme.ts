/** Light or dark: what the system says, unless somebody chose. */

import { useSyncExternalStore } from "react";

export type Theme = "light" | "dark";

const KEY = "evsys-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const watchers = new Set<() => void>();

function chosen(): Theme | null {
  try {
    const found = window.localStorage.getItem(KEY);
    return found === "light" || found === "dark" ? found : null;
  } catch {
    return null; // a file may have no storage
  }
}

let current: Theme = apply();

function apply(): Theme {
  const theme = chosen() ?? (system.matches ? "dark" : "light");
  document.documentElement.dataset["theme"] = theme;
  return theme;
}

function change(): void {
  current = apply();
  for (const watcher of watchers) watcher();
}

system.addEventListener("change", change);

export function switchTheme(): void {
  const next = current === "dark" ? "light" : "dark";
  try {
    // Back to what the system says means: follow it again.
    if (next === (system.matches ? "dark" : "light")) window.localStorage.removeItem(KEY);
    else window.localStorage.setItem(KEY, next);
  } catch {
    document.documentElement.dataset["theme"] = next;
  }
  change();
}

export const useTheme = (): Theme =>
  useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => current,
  );
