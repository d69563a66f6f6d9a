/** Colours that mean something: runs and rewards. */

import type { Theme } from "./theme";

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
