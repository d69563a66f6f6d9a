/** The keyboard: the same letters everywhere; what is typed into a field is never taken for one. */

import { useEffect, useRef } from "react";

export type Keys = { [key: string]: () => void };

export const HELP: [string, string][] = [
  ["/", "search"],
  ["j  k", "next, previous row"],
  ["enter", "open the row"],
  ["[  ]", "previous, next sample"],
  ["c", "mark a row to compare, as many as wanted"],
  ["C", "compare the marked rows"],
  ["t", "light or dark"],
  ["?", "this help"],
];

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

export function useKeys(keys: Keys): void {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (isTyping(event.target)) {
        if (event.key === "Escape") (event.target as HTMLElement).blur();
        return;
      }
      if (document.querySelector("dialog[open]")) return;
      // A link or button that has the focus answers to Enter itself.
      if (event.key === "Enter" && event.target instanceof HTMLElement && event.target.closest("a, button, summary")) return;
      const act = current.current[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);
}
