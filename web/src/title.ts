/** The title of the tab: what needs somebody, the screen, and the project. */

import { useEffect } from "react";

let project = "";
let screen = "";
let waiting = 0;

function write(): void {
  document.title = [waiting ? `(${waiting}) ${screen || project}` : screen, screen ? project : "", "evsys"].filter(Boolean).join(" · ");
}

export function titleOfProject(name: string): void {
  project = name;
  write();
}

/** How many experiments wait for somebody. */
export function titleOfWaiting(count: number): void {
  waiting = count;
  write();
}

export function useTitle(text: string): void {
  useEffect(() => {
    screen = text;
    write();
    return () => {
      screen = "";
      write();
    };
  }, [text]);
}
