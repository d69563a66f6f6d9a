/** Curves over training: one line a run with the spread of its seeds. New points never move what is being looked at. */

import { useEffect, useMemo, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { show, tick } from "../format";
import { useTheme } from "../theme";
import type { Aligned } from "./seedBands";
import { useWidth } from "./width";

export interface Range {
  from: number;
  to: number;
}

const HEIGHT = 340;
/** Steps are whole numbers, and so are the ticks below them. */
const WHOLE = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8].flatMap((unit) => [unit, 2 * unit, 5 * unit]);

export function LinePlot(props: {
  aligned: Aligned;
  colour: (run: string) => string;
  hidden: Set<string>;
  xLabel: string;
  yLabel: string;
  log: boolean;
  range: Range | null;
  onRange: (range: Range | null) => void;
  height?: number;
}) {
  const height = props.height ?? HEIGHT;
  const { aligned, colour, hidden, xLabel, yLabel, log, range } = props;
  const theme = useTheme();
  const [box, width] = useWidth<HTMLDivElement>();
  const plot = useRef<uPlot | null>(null);
  const onRange = useRef(props.onRange);
  onRange.current = props.onRange;

  const shown = useMemo(() => aligned.curves.filter((curve) => !hidden.has(curve.run)), [aligned, hidden]);
  const columns = useMemo<uPlot.AlignedData>(
    () => [aligned.x, ...shown.flatMap((curve) => [curve.mean, curve.low, curve.high])] as uPlot.AlignedData,
    [aligned, shown],
  );
  // The plot is made anew when what it shows changes, not when its numbers do.
  const names = shown.map((curve) => `${curve.run}\n${colour(curve.run)}`).join("\t");

  useEffect(() => {
    const element = box.current;
    if (!element || !width) return undefined;
    const made = new uPlot(
      options({ width, height, names, xLabel, yLabel, log, onRange: (value) => onRange.current(value) }),
      columns,
      element,
    );
    plot.current = made;
    return () => {
      made.destroy();
      plot.current = null;
    };
    // `columns` and `width` are followed below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [names, xLabel, yLabel, log, theme, width > 0]);

  useEffect(() => plot.current?.setSize({ width, height }), [width, height]);
  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    made.setData(columns, !range);
    if (range) made.setScale("x", { min: range.from, max: range.to });
  }, [columns, range?.from, range?.to, names, theme, log, range]);

  const summary = shown.slice(0, 12).map((curve) => `${curve.run} ends at ${show(curve.mean.findLast((one) => one !== null))}`);
  return (
    <div ref={box} style={{ height }} role="img" aria-label={`${yLabel} over ${xLabel}: ${summary.join("; ")}`} />
  );
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options(given: {
  width: number;
  height: number;
  names: string;
  xLabel: string;
  yLabel: string;
  log: boolean;
  onRange: (range: Range | null) => void;
}): uPlot.Options {
  const font = `12px ${css("--font")}`;
  const axis = { font, stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
  const runs = given.names ? given.names.split("\t").map((name) => name.split("\n") as [string, string]) : [];
  const series: uPlot.Series[] = [{ label: given.xLabel }];
  const bands: uPlot.Band[] = [];
  for (const [run, colour] of runs) {
    const at = series.length;
    series.push(
      { label: run, stroke: colour, width: 2, points: { show: (made, at) => (made.data[at] ?? []).filter((one) => one != null).length < 4, size: 7, fill: colour }, spanGaps: true },
      { label: `${run} lowest`, stroke: "transparent", points: { show: false }, spanGaps: true },
      { label: `${run} highest`, stroke: "transparent", points: { show: false }, spanGaps: true },
    );
    bands.push({ series: [at + 2, at + 1], fill: `${colour}2e` });
  }
  return {
    width: given.width,
    height: given.height,
    legend: { show: false },
    cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
    scales: { x: { time: false }, y: given.log ? { distr: 3 } : {} },
    axes: [
      { ...axis, size: 28, values: (_, ticks) => ticks.map(tick), ...(given.xLabel === "steps" || !given.xLabel ? { incrs: WHOLE } : {}) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((one) => (one === null ? "" : tick(one))) },
    ],
    series,
    bands,
    plugins: [tooltip(runs, given.xLabel)],
    hooks: {
      setSelect: [
        (made) => {
          const { left, width } = made.select;
          if (width > 4) given.onRange({ from: made.posToVal(left, "x"), to: made.posToVal(left + width, "x") });
          made.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        },
      ],
      ready: [(made) => made.over.addEventListener("dblclick", () => given.onRange(null))],
    },
  };
}

/** What is under the pointer: the nearest few runs, best to read at a glance. */
function tooltip(runs: [string, string][], xLabel: string): uPlot.Plugin {
  const box = document.createElement("div");
  box.className = "plot-tip";
  box.hidden = true;
  return {
    hooks: {
      init: [(made) => void made.over.append(box)],
      setCursor: [
        (made) => {
          const { idx, left = 0, top = 0 } = made.cursor;
          box.hidden = idx == null || left < 0;
          if (idx == null || left < 0) return;
          const at = runs
            .map(([run, colour], place) => ({ run, colour, value: made.data[place * 3 + 1]?.[idx] }))
            .filter((one): one is typeof one & { value: number } => typeof one.value === "number")
            .map((one) => ({ ...one, far: Math.abs(made.valToPos(one.value, "y") - top) }))
            .sort((a, b) => a.far - b.far)
            .slice(0, 6)
            .sort((a, b) => b.value - a.value);
          box.replaceChildren(head(`${xLabel} ${show(made.data[0][idx])}`), ...at.map(line));
          box.style.transform = `translate(${left > made.over.clientWidth / 2 ? left - box.offsetWidth - 12 : left + 12}px, 8px)`;
        },
      ],
    },
  };
}

function head(text: string): HTMLElement {
  const made = document.createElement("div");
  made.className = "quiet";
  made.textContent = text;
  return made;
}

function line({ run, colour, value }: { run: string; colour: string; value: number }): HTMLElement {
  const made = document.createElement("div");
  const swatch = document.createElement("i");
  swatch.className = "swatch";
  swatch.style.background = colour;
  const name = document.createElement("span");
  name.className = "clip";
  name.textContent = run;
  const number = document.createElement("b");
  number.textContent = show(value);
  made.append(swatch, name, number);
  return made;
}
