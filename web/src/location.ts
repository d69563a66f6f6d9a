/** Where we are: path and settings of the view, all behind the `#`, so that an exported file has addresses too. */

import { useCallback, useMemo, useSyncExternalStore } from "react";

export function splitHash(hash: string): { path: string; search: string } {
  const text = hash.replace(/^#/, "");
  const at = text.indexOf("?");
  const path = at < 0 ? text : text.slice(0, at);
  return { path: path.startsWith("/") ? path : "/", search: at < 0 ? "" : text.slice(at + 1) };
}

function subscribe(watcher: () => void): () => void {
  window.addEventListener("hashchange", watcher);
  window.addEventListener("popstate", watcher);
  return () => {
    window.removeEventListener("hashchange", watcher);
    window.removeEventListener("popstate", watcher);
  };
}

const currentPath = () => splitHash(window.location.hash).path;
const currentSearch = () => splitHash(window.location.hash).search;

export function navigate(to: string, options: { replace?: boolean } = {}): void {
  const target = to.startsWith("#") ? to : `#${to}`;
  if (target === window.location.hash) return;
  if (options.replace) window.history.replaceState(null, "", target);
  else window.history.pushState(null, "", target);
  window.dispatchEvent(new Event("hashchange"));
}

let lastList = "";

/** The list of experiments as it was last looked at, with its filters. */
export function listAddress(): string {
  if (currentPath() === "/") lastList = currentSearch();
  return `#/${lastList ? `?${lastList}` : ""}`;
}

const useHashSearch = (): string => useSyncExternalStore(subscribe, currentSearch);

/** The segments of the path, each as it was before it was escaped. */
export function useSegments(): string[] {
  const path = useSyncExternalStore(subscribe, currentPath);
  return useMemo(() => path.split("/").slice(1).map(unescape), [path]);
}

function unescape(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment; // somebody typed a lone percent sign
  }
}

/** The address of a view. */
export function href(segments: string[], settings: { [name: string]: string | null | undefined } = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) if (value) search.set(name, value);
  const path = segments.map((one) => `/${encodeURIComponent(one)}`).join("") || "/";
  const text = search.toString();
  return `#${path}${text ? `?${text}` : ""}`;
}

export type Settings = { [name: string]: string };

/** All settings of the view, and a function that changes some; an empty one is removed. */
export function useSettings(): [Settings, (changes: { [name: string]: string | null }, options?: { push?: boolean }) => void] {
  const search = useHashSearch();
  const change = useCallback((changes: { [name: string]: string | null }, options: { push?: boolean } = {}) => {
    const found = new URLSearchParams(currentSearch());
    for (const [name, value] of Object.entries(changes)) {
      if (value) found.set(name, value);
      else found.delete(name);
    }
    const text = found.toString();
    // The address escapes a path; keep it as it is and change only what follows.
    navigate(`${currentPath()}${text ? `?${text}` : ""}`, { replace: !options.push });
  }, []);
  const settings = useMemo<Settings>(() => Object.fromEntries(new URLSearchParams(search)), [search]);
  return [settings, change];
}

/** One setting of the view. */
export function useSetting(name: string, fallback = ""): [string, (value: string, options?: { push?: boolean }) => void] {
  const [settings, change] = useSettings();
  const set = useCallback(
    (value: string, options?: { push?: boolean }) => change({ [name]: value === fallback ? null : value }, options),
    [change, name, fallback],
  );
  return [settings[name] ?? fallback, set];
}
