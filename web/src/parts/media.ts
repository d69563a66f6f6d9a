/** Whether the screen is as a media query says. */

import { useSyncExternalStore } from "react";

export const useMedia = (query: string): boolean =>
  useSyncExternalStore(
    (watcher) => {
      const media = window.matchMedia(query);
      media.addEventListener("change", watcher);
      return () => media.removeEventListener("change", watcher);
    },
    () => window.matchMedia(query).matches,
  );
