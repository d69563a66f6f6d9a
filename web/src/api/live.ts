/** What changed, as it happens. An event says which experiment changed; what shows it is fetched again, in place. */

import type { QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";

import { exported, streamAddress } from "./client";

export type Connection = "live" | "connecting" | "lost";

const REFRESH_MS = 400;
let connection: Connection = "connecting";
const watchers = new Set<() => void>();

function tellWatchers(now: Connection) {
  connection = now;
  for (const watcher of watchers) watcher();
}

/** Follow the server until the page goes away; bursts of changes become one refresh. */
export function follow(queries: QueryClient): () => void {
  if (exported) return () => undefined;
  const changed = new Set<string>();
  let timer: number | undefined;
  const refresh = () => {
    timer = undefined;
    for (const id of changed) {
      void queries.invalidateQueries({ queryKey: ["experiment", id] });
      void queries.invalidateQueries({ predicate: ({ queryKey: [kind, a, b] }) => kind === "comparison" && (a === id || b === id) });
    }
    if (changed.size) void queries.invalidateQueries({ queryKey: ["experiments"] });
    changed.clear();
  };
  const stream = new EventSource(streamAddress);
  stream.addEventListener("hello", () => {
    // After a pause the server may be another one: everything on the screen is asked for again.
    if (connection === "lost") void queries.invalidateQueries();
    tellWatchers("live");
  });
  stream.addEventListener("change", (event) => {
    const change = JSON.parse((event as MessageEvent<string>).data) as { kind: string; id: string };
    if (change.kind === "experiment") changed.add(change.id);
    else void queries.invalidateQueries({ queryKey: ["data"] });
    timer ??= window.setTimeout(refresh, REFRESH_MS);
  });
  stream.addEventListener("error", () => tellWatchers("lost"));
  return () => {
    stream.close();
    window.clearTimeout(timer);
  };
}

export const useConnection = (): Connection =>
  useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => connection,
  );
