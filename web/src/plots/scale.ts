/** Axes: from values to pixels and back, with ticks at round numbers. */

export interface Scale {
  (value: number): number;
  invert: (pixel: number) => number;
  ticks: number[];
  low: number;
  high: number;
}

/** Round numbers that cover a range, about as many as wanted. */
export function roundTicks(low: number, high: number, wanted: number): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= raw) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const ticks: number[] = [];
  for (let at = first; at * step <= high + step * 1e-9; at += 1) ticks.push(Number((at * step).toPrecision(12)));
  return ticks;
}

export function linear(low: number, high: number, from: number, to: number, wanted = 5): Scale {
  const span = high - low || 1;
  const scale = (value: number) => from + ((value - low) / span) * (to - from);
  return Object.assign(scale, {
    invert: (pixel: number) => low + ((pixel - from) / (to - from || 1)) * span,
    ticks: roundTicks(low, high, wanted),
    low,
    high,
  });
}

/** A range a little wider than the values, so that nothing sits on the edge. */
export function padded(values: number[], share = 0.06): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (!Number.isFinite(low)) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * share;
  return [low - room, high + room];
}
