/** Every run as one line through its settings to its score. Drag along an axis to keep only what passes there. */

import { useEffect, useMemo, useRef, useState } from "react";

import type { Json, RunView } from "../api/types";
import { score, shortPath, tick as short, value as configValue } from "../format";
import { useTheme } from "../theme";
import { linear, padded } from "./scale";
import { useWidth } from "./width";

const HEIGHT = 260;
const TOP = 34;
const BOTTOM = HEIGHT - 14;

interface Axis {
  name: string;
  /** Position of each run, in pixels from the top. */
  place: (run: RunView) => number | null;
  ticks: { text: string; y: number }[];
}

type Brushes = { [axis: number]: [number, number] };

export function Parallel(props: { runs: RunView[]; varied: string[]; metric: string; onPick: (run: string) => void }) {
  const { runs, varied, metric } = props;
  const [box, width] = useWidth<HTMLDivElement>();
  const [brushes, setBrushes] = useState<Brushes>({});
  useTheme(); // the lines are drawn again in the colours of the other theme
  const canvas = useRef<HTMLCanvasElement>(null);
  const axes = useMemo(() => [...varied.map((path) => settingAxis(path, runs)), scoreAxis(metric, runs)], [runs, varied, metric]);
  const places = useMemo(() => runs.map((run) => axes.map((axis) => axis.place(run))), [runs, axes]);
  const x = (at: number) => 70 + (at * Math.max(0, width - 140)) / Math.max(1, axes.length - 1);
  const kept = places.map((line) => Object.entries(brushes).every(([axis, [from, to]]) => inside(line[Number(axis)], from, to)));

  useEffect(() => {
    const surface = canvas.current;
    const pen = surface?.getContext("2d");
    if (!surface || !pen || !width) return;
    const dense = window.devicePixelRatio || 1;
    surface.width = width * dense;
    surface.height = HEIGHT * dense;
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.clearRect(0, 0, width, HEIGHT);
    const style = getComputedStyle(document.documentElement);
    const [dim, strong] = [style.getPropertyValue("--line").trim(), style.getPropertyValue("--accent").trim()];
    const draw = (line: (number | null)[], colour: string, alpha: number) => {
      pen.beginPath();
      line.forEach((y, at) => y !== null && pen.lineTo(x(at), y));
      pen.strokeStyle = colour;
      pen.globalAlpha = alpha;
      pen.stroke();
    };
    const alpha = Math.max(0.25, Math.min(0.9, 60 / Math.max(1, runs.length)));
    pen.lineWidth = 1.5;
    places.forEach((line, at) => !kept[at] && draw(line, dim, 0.8));
    places.forEach((line, at) => kept[at] && draw(line, strong, alpha));
    pen.globalAlpha = 1;
  });

  const many = kept.filter(Boolean).length;
  return (
    <div className="stack tight">
      <div ref={box} className="scroll-x" tabIndex={0} role="group" aria-label="settings of each run and its score">
        <div className="plane" style={{ height: HEIGHT, minWidth: axes.length * 90 }}>
          <canvas ref={canvas} style={{ width, height: HEIGHT }} aria-hidden="true" />
          <svg width={width} height={HEIGHT} role="img" aria-label={`${runs.length} runs as lines through ${axes.map((axis) => axis.name).join(", ")}`}>
            {axes.map((axis, at) => (
              <AxisLine key={axis.name} axis={axis} x={x(at)} brush={brushes[at]} onBrush={(brush) => setBrushes((old) => withBrush(old, at, brush))} />
            ))}
          </svg>
        </div>
      </div>
      {many < runs.length && (
        <p className="small row">
          {many} of {runs.length} runs pass
          {runs.filter((_, at) => kept[at]).slice(0, 6).map((run) => (
            <button key={run.run} type="button" className="plain" onClick={() => props.onPick(run.run)}>
              {run.run} {score(run.score)}
            </button>
          ))}
          <button type="button" onClick={() => setBrushes({})}>
            show all
          </button>
        </p>
      )}
    </div>
  );
}

const inside = (y: number | null | undefined, from: number, to: number) => y != null && y >= from - 1 && y <= to + 1;

function withBrush(old: Brushes, at: number, brush: [number, number] | null): Brushes {
  const next = { ...old };
  if (brush) next[at] = brush;
  else delete next[at];
  return next;
}

function AxisLine(props: { axis: Axis; x: number; brush: [number, number] | undefined; onBrush: (brush: [number, number] | null) => void }) {
  const { axis, x, brush, onBrush } = props;
  const begun = useRef<number | null>(null);
  const at = (event: React.PointerEvent<SVGRectElement>) => {
    const top = event.currentTarget.ownerSVGElement?.getBoundingClientRect().top ?? 0;
    return Math.min(BOTTOM, Math.max(TOP, event.clientY - top));
  };
  return (
    <g>
      <text className="axis-text" x={x} y={14} textAnchor="middle">
        {axis.name}
      </text>
      <line className="zero" x1={x} x2={x} y1={TOP} y2={BOTTOM} />
      {axis.ticks.map((tick) => (
        <text key={tick.text} className="axis-text" x={x + 7} y={tick.y + 4} paintOrder="stroke" stroke="var(--bg)" strokeWidth={3}>
          {tick.text.length > 14 ? `${tick.text.slice(0, 13)}…` : tick.text}
        </text>
      ))}
      {brush && <rect x={x - 5} width={10} y={brush[0]} height={Math.max(2, brush[1] - brush[0])} fill="var(--accent)" fillOpacity={0.35} />}
      <rect
        x={x - 14}
        width={28}
        y={TOP - 6}
        height={BOTTOM - TOP + 12}
        fill="transparent"
        style={{ cursor: "ns-resize", touchAction: "none" }}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          begun.current = at(event);
        }}
        onPointerMove={(event) => {
          if (begun.current !== null) onBrush([Math.min(begun.current, at(event)), Math.max(begun.current, at(event))]);
        }}
        onPointerUp={(event) => {
          if (begun.current !== null && Math.abs(at(event) - begun.current) < 3) onBrush(null);
          begun.current = null;
        }}
      />
    </g>
  );
}

/** Numbers keep their distances unless they span decades; words, and mixtures, are evenly spaced. */
function settingAxis(path: string, runs: RunView[]): Axis {
  const values = [...new Map(runs.map((run) => [JSON.stringify(run.varied[path]), run.varied[path]])).values()];
  const numbers = values.filter((one): one is number => typeof one === "number");
  const name = shortPath(path);
  if (numbers.length === values.length && numbers.length > 8) {
    const logarithmic = Math.min(...numbers) > 0 && Math.max(...numbers) / Math.min(...numbers) > 50;
    const to = (value: number) => (logarithmic ? Math.log10(value) : value);
    const scale = linear(Math.min(...numbers.map(to)), Math.max(...numbers.map(to)), BOTTOM, TOP, 5);
    const ticks = scale.ticks.map((tick) => ({ text: short(logarithmic ? 10 ** tick : tick), y: scale(tick) }));
    return { name, ticks, place: (run) => (typeof run.varied[path] === "number" ? scale(to(run.varied[path])) : null) };
  }
  const sorted = [...values].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : configValue(a).localeCompare(configValue(b))));
  const at = new Map(sorted.map((one, index) => [JSON.stringify(one), index]));
  const y = (index: number) => (sorted.length === 1 ? (TOP + BOTTOM) / 2 : BOTTOM - (index * (BOTTOM - TOP)) / (sorted.length - 1));
  const every = Math.ceil(sorted.length / 10);
  const ticks = sorted.flatMap((one: Json | undefined, index) => (index % every ? [] : [{ text: configValue(one), y: y(index) }]));
  return { name, ticks, place: (run) => y(at.get(JSON.stringify(run.varied[path])) ?? 0) };
}

function scoreAxis(metric: string, runs: RunView[]): Axis {
  const scores = runs.flatMap((run) => (run.score === null ? [] : [run.score]));
  const [low, high] = padded(scores, 0);
  const scale = linear(low, high, BOTTOM, TOP, 5);
  return {
    name: metric || "score",
    ticks: scale.ticks.map((tick) => ({ text: short(tick), y: scale(tick) })),
    place: (run) => (run.score === null ? null : scale(run.score)),
  };
}
