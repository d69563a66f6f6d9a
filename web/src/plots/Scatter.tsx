/** Points with intervals, such as score over cost; what nothing beats on both is joined by a line. */

import { compact, score, tick as short } from "../format";
import { linear, padded } from "./scale";
import { useWidth } from "./width";

export interface Point {
  id: string;
  label: string;
  x: number;
  y: number;
  low?: number | null;
  high?: number | null;
  colour: string;
  href?: string;
}

const HEIGHT = 280;

/** Those that no other beats: none is cheaper and at least as good. */
export function frontier(points: Point[], mode: string): Point[] {
  const better = (a: number, b: number) => (mode === "max" ? a > b : a < b);
  const found: Point[] = [];
  for (const point of [...points].sort((a, b) => a.x - b.x || (mode === "max" ? b.y - a.y : a.y - b.y))) {
    const best = found.at(-1);
    if (!best || better(point.y, best.y)) found.push(point);
  }
  return found;
}

export function Scatter(props: {
  points: Point[];
  xLabel: string;
  yLabel: string;
  joined?: Point[];
  xText?: (value: number) => string;
}) {
  const [box, width] = useWidth<HTMLDivElement>();
  const { points } = props;
  const xText = props.xText ?? compact;
  const [left, right] = padded(points.map((one) => one.x));
  const ends = points.flatMap((one) => [one.y, one.low ?? one.y, one.high ?? one.y]);
  const [bottom, top] = padded(ends);
  const x = linear(Math.min(left, right), right, 52, Math.max(60, width - 16), width < 480 ? 3 : 6);
  const y = linear(bottom, top, HEIGHT - 36, 20, 5);
  const path = (props.joined ?? []).map((one, at) => `${at ? `H${x(one.x)}V` : `M${x(one.x)} `}${y(one.y)}`).join("");
  const aria = points.slice(0, 12).map((one) => `${one.label}: ${score(one.y)} at ${xText(one.x)}`).join("; ");
  const labelled = points.length <= 14;
  return (
    <div ref={box}>
      <svg width={width} height={HEIGHT} role={points.some((one) => one.href) ? "group" : "img"} aria-label={`${props.yLabel} over ${props.xLabel}. ${aria}`}>
        {y.ticks.map((tick) => (
          <g key={tick}>
            <line className="hair" x1={52} x2={width - 16} y1={y(tick)} y2={y(tick)} />
            <text className="axis-text" x={46} y={y(tick) + 4} textAnchor="end">
              {short(tick)}
            </text>
          </g>
        ))}
        {x.ticks.map((tick) => (
          <text key={tick} className="axis-text" x={x(tick)} y={HEIGHT - 18} textAnchor="middle">
            {xText(tick)}
          </text>
        ))}
        <text className="axis-text" x={width - 16} y={HEIGHT - 3} textAnchor="end">
          {props.xLabel}
        </text>
        <text className="axis-text" x={0} y={11}>
          {props.yLabel}
        </text>
        {path && <path d={path} fill="none" stroke="var(--strong-line)" strokeDasharray="4 3" />}
        {points.map((one) => (
          <ScatterPoint key={one.id} point={one} x={x(one.x)} y={y} text={`${one.label}: ${score(one.y)} at ${xText(one.x)}`} labelled={labelled} end={x(one.x) > width * 0.7} />
        ))}
      </svg>
    </div>
  );
}

function ScatterPoint(props: { point: Point; x: number; y: (value: number) => number; text: string; labelled: boolean; end: boolean }) {
  const { point: one, x, y } = props;
  const mark = (
    <g>
      <title>{props.text}</title>
      {one.low != null && one.high != null && (
        <line x1={x} x2={x} y1={y(one.low)} y2={y(one.high)} stroke={one.colour} strokeWidth={2} strokeOpacity={0.45} />
      )}
      <circle cx={x} cy={y(one.y)} r={5} fill={one.colour} />
      {props.labelled && (
        <text className="axis-text" x={x + (props.end ? -9 : 9)} y={y(one.y) - 7} textAnchor={props.end ? "end" : "start"}>
          {one.label.length > 30 ? `${one.label.slice(0, 29)}…` : one.label}
        </text>
      )}
    </g>
  );
  return one.href ? (
    <a href={one.href} aria-label={props.text}>
      {mark}
    </a>
  ) : (
    mark
  );
}
