/** Differences from the baseline, each with its interval; the claimed effect is a line among them. */

import type { RunView } from "../api/types";
import { interval, score, signed, tick as short } from "../format";
import { padded, linear } from "./scale";
import { useWidth } from "./width";

const ROW = 28;
const MOST = 24;

export function Forest(props: {
  runs: RunView[];
  label: (run: RunView) => string;
  colour: (run: string) => string;
  claimed: number | null;
}) {
  const [box, width] = useWidth<HTMLDivElement>();
  const compared = props.runs.filter((run) => run.difference !== null);
  const rows = compared.slice(0, MOST);
  const ends = rows.flatMap(({ difference: one }) => (one ? [one.value, one.low ?? one.value, one.high ?? one.value] : []));
  const [low, high] = padded([...ends, 0, ...(props.claimed ? [props.claimed] : [])]);
  const names = Math.min(width * 0.34, 260);
  const numbers = width < 480 ? 56 : 164;
  const x = linear(low, high, names + 8, Math.max(names + 40, width - numbers - 12), width < 480 ? 2 : 5);
  const height = rows.length * ROW + 8;
  const aria = rows.map((run) => `${props.label(run)}: ${text(run)}`).join("; ");
  return (
    <div ref={box} className="forest">
      <svg width={width} height={height + 24} role="img" aria-label={`difference from the baseline. ${aria}`}>
        {x.ticks.map((tick) => (
          <g key={tick}>
            <line className={tick === 0 ? "zero" : "hair"} x1={x(tick)} x2={x(tick)} y1={0} y2={height} />
            <text className="axis-text" x={x(tick)} y={height + 16} textAnchor="middle">
              {tick > 0 ? "+" : ""}
              {short(tick)}
            </text>
          </g>
        ))}
        {props.claimed ? (
          <line x1={x(props.claimed)} x2={x(props.claimed)} y1={0} y2={height} stroke="var(--accent)" strokeDasharray="3 3">
            <title>claimed: {signed(props.claimed)}</title>
          </line>
        ) : null}
        {rows.map((run, at) => (
          <ForestRow key={run.run} run={run} y={at * ROW + ROW / 2 + 4} x={x} name={props.label(run)} names={names} width={width} colour={props.colour(run.run)} narrow={width < 480} />
        ))}
      </svg>
      {compared.length > MOST && <p className="small quiet">The first {MOST} of {compared.length}; the table has all.</p>}
    </div>
  );
}

function text(run: RunView): string {
  const one = run.difference;
  return one ? `${signed(one.value)} ${interval(one.low, one.high)}` : "";
}

function ForestRow(props: {
  run: RunView;
  y: number;
  x: (value: number) => number;
  name: string;
  names: number;
  width: number;
  colour: string;
  narrow: boolean;
}) {
  const { run, y, x, name, names, colour } = props;
  const one = run.difference;
  if (!one) return null;
  const letters = Math.floor(names / 7.2);
  return (
    <g>
      <title>{`${run.run}: ${text(run)}`}</title>
      <text className="name" x={0} y={y + 4}>
        {name.length > letters ? `${name.slice(0, letters - 1)}…` : name}
      </text>
      {one.low !== null && one.high !== null && (
        <line x1={x(one.low)} x2={x(one.high)} y1={y} y2={y} stroke={colour} strokeWidth={3} strokeOpacity={0.5} strokeLinecap="round" />
      )}
      <circle cx={x(one.value)} cy={y} r={5} fill={colour} />
      <text className="number" x={props.width} y={y + 4}>
        {signed(one.value)}
        {!props.narrow && <tspan dx={6}>{interval(one.low, one.high)}</tspan>}
      </text>
    </g>
  );
}

/** One dot a seed, a line for the interval, on a scale that the whole table shares. */
export function SeedDots({ run, range, colour }: { run: RunView; range: [number, number]; colour: string }) {
  const x = linear(range[0], range[1], 6, 114);
  const label = `seeds: ${run.seed_scores.map((one) => score(one)).join(", ")}`;
  return (
    <svg width={120} height={20} role="img" aria-label={label}>
      <title>{label}</title>
      <line className="hair" x1={6} x2={114} y1={10} y2={10} />
      {run.low !== null && run.high !== null && (
        <line x1={x(run.low)} x2={x(run.high)} y1={10} y2={10} stroke={colour} strokeWidth={2} strokeOpacity={0.6} />
      )}
      {run.seed_scores.map((one, at) => (
        <circle key={at} cx={x(one)} cy={10} r={3.5} fill={colour} fillOpacity={0.75} />
      ))}
    </svg>
  );
}
