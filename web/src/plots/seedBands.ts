/** Curves of several seeds as one line: the mean where they overlap, and how far apart they are. */

import type { Series } from "../api/types";

export interface RunCurve {
  run: string;
  n: number;
  mean: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
}

export interface Aligned {
  x: number[];
  curves: RunCurve[];
}

type Values = (number | null)[];

/** Each run over one common axis. `smoothing` is the weight of what came before, 0 for none. */
export function bandsOfRuns(series: Series[], smoothing = 0): Aligned {
  const x = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const byRun = new Map<string, Series[]>();
  for (const one of series) byRun.set(one.run, [...(byRun.get(one.run) ?? []), one]);
  const curves = [...byRun].map(([run, seeds]) => {
    const means = seeds.map((seed) => onAxis(seed.x, smooth(seed.y, smoothing), x));
    const lows = seeds.map((seed) => onAxis(seed.x, seed.low, x));
    const highs = seeds.map((seed) => onAxis(seed.x, seed.high, x));
    return {
      run,
      n: seeds.length,
      mean: x.map((_, at) => meanOf(means, at)),
      low: x.map((_, at) => extremeOf(lows, at, Math.min)),
      high: x.map((_, at) => extremeOf(highs, at, Math.max)),
    };
  });
  return { x, curves };
}

/** Values between the points of a curve; nothing before its first and after its last. */
export function onAxis(from: number[], values: Values, axis: number[]): Values {
  const found: Values = [];
  let at = 0;
  for (const x of axis) {
    while (at < from.length && (from[at] as number) < x) at += 1;
    const right = from[at];
    if (right === x) found.push(values[at] ?? null);
    else if (at === 0 || right === undefined) found.push(null);
    else {
      const [a, b, left] = [values[at - 1], values[at], from[at - 1] as number];
      found.push(a == null || b == null ? null : a + ((x - left) / (right - left)) * (b - a));
    }
  }
  return found;
}

export function smooth(values: Values, weight: number): Values {
  if (!weight) return values;
  let total = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = total * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return total / mass;
  });
}

function meanOf(lines: Values[], at: number): number | null {
  let sum = 0;
  let count = 0;
  for (const line of lines) {
    const value = line[at];
    if (value != null) {
      sum += value;
      count += 1;
    }
  }
  return count ? sum / count : null;
}

function extremeOf(lines: Values[], at: number, pick: (a: number, b: number) => number): number | null {
  let found: number | null = null;
  for (const line of lines) {
    const value = line[at];
    if (value != null) found = found === null ? value : pick(found, value);
  }
  return found;
}
