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

/** Told apart by every common kind of colour vision, on both backgrounds. The baseline is always grey. */
const PALETTE: { [theme in Theme]: string[] } = {
  light: ["#0068a8", "#c24e00", "#00805c", "#a9508a", "#6a52c7", "#8a6a00", "#2a8fb8", "#a33a3a"],
  dark: ["#5eb1ef", "#f2914a", "#3ec79a", "#e08fc4", "#a899f5", "#dab53c", "#7fd4ec", "#ee8c8c"],
};
const BASELINE: { [theme in Theme]: string } = { light: "#767d89", dark: "#959ca8" };

/** A colour for each run; runs keep theirs when others are hidden. */
export function colours(runs: string[], baseline: string, theme: Theme): (run: string) => string {
  const others = runs.filter((run) => run !== baseline);
  const places = new Map(others.map((run, place) => [run, place]));
  const palette = PALETTE[theme];
  return (run) => (run === baseline && others.length ? BASELINE[theme] : palette[(places.get(run) ?? 0) % palette.length] ?? "#888");
}

/** Low to high on one scale whose steps look even. */
export const rewardColour = (share: number): string =>
  `color-mix(in oklab, var(--reward-high) ${Math.round(Math.min(1, Math.max(0, share)) * 100)}%, var(--reward-low))`;
