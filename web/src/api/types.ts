/** What the API answers. The classes of `dashboard/shapes` are the definition; a test holds this file to them. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Dict = { [key: string]: Json };
export type Amounts = { [name: string]: number };

export interface Session {
  mode: "local" | "server";
  project: string;
  project_name: string;
  scopes: string[];
  version: string;
  can_stop: boolean;
}

export interface Live {
  arms_running: number;
  step: number | null;
  total_steps: number | null;
  metric: string;
  recent: number[];
  awaits_approval: boolean;
}

export interface Experiment {
  id: string;
  name: string;
  status: string;
  verdict: string;
  hypothesis: string;
  sentence: string;
  metric: string;
  mode: "max" | "min";
  best_run: string;
  best_score: number | null;
  best_low: number | null;
  best_high: number | null;
  n_runs: number;
  n_arms: number;
  n_done: number;
  n_failures: number;
  spend: Amounts;
  tags: string[];
  models: string[];
  algorithms: string[];
  backends: string[];
  parent_id: string;
  started: number | null;
  ended: number | null;
  invalidated: string;
  flags: string[];
  n_notes: number;
  version: number;
  live: Live | null;
}

export interface Experiments {
  items: Experiment[];
  next: string | null;
  total: number;
}

export interface Progress {
  done: number;
  of: number;
}

export interface Overview {
  total: number;
  by_status: Amounts;
  by_verdict: Amounts;
  spend: Amounts;
  models: string[];
  algorithms: string[];
  tags: string[];
  running: Experiment[];
  version: number;
  reading: Progress | null;
}

export interface Arm {
  arm: string;
  run: string;
  seed: number | null;
  status: string;
  problem: string;
  metrics: Amounts;
  spend: Amounts;
  step: number | null;
  total_steps: number | null;
  checkpoints: number;
  score: number | null;
}

export interface Difference {
  value: number;
  low: number | null;
  high: number | null;
  p: number | null;
}

export interface Run {
  run: string;
  is_baseline: boolean;
  is_best: boolean;
  varied: Dict;
  score: number | null;
  low: number | null;
  high: number | null;
  selection_score: number | null;
  seed_scores: number[];
  n_seeds: number;
  n_tasks: number | null;
  n_samples: number | null;
  failures: number;
  spend: Amounts;
  difference: Difference | null;
  arms: Arm[];
}

export interface Claim {
  text: string;
  metric: string;
  direction: string;
  min_effect: number | null;
  baseline: string;
  registered: boolean;
  registered_at: number | null;
  sha256: string;
}

export interface Note {
  id: string;
  text: string;
  author: string;
  time: number | null;
}

export interface ControlRequest {
  id: string;
  kind: "stop" | "approve" | "reject";
  subject: string;
  reason: string;
  author: string;
  time: number;
  state: "open" | "taken" | "done" | "refused";
  answer: string;
}

export interface Look {
  look: number;
  of: number;
  seeds: number;
  verdict: string;
  error: number | null;
  chance: number | null;
  ends: boolean;
  why: string;
}

export interface ExperimentDetail {
  experiment: Experiment;
  description: string;
  claim: Claim;
  runs: Run[];
  varied: string[];
  baseline: string;
  metrics: string[];
  threats: string[];
  next: string[];
  not_scored: { [key: string]: string };
  looks: Dict | null;
  interim: Look[];
  noise_floor: Dict | null;
  smallest_detectable: number | null;
  failures: { arm: string; reason: string }[];
  commands: { [name: string]: string };
  conclusion_text: string;
  notes: Note[];
  requests: ControlRequest[];
  config: Dict;
  conclusion: Dict;
}

export interface ArmDetail {
  arm: Arm;
  config: Dict;
  checkpoints: Dict[];
  datasets: Dict[];
  benchmarks: Dict[];
  examples: string;
  story: string;
}

export interface Series {
  arm: string;
  run: string;
  seed: number | null;
  n: number;
  x: number[];
  y: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
}

export interface Curves {
  metric: string;
  x: string;
  axes: string[];
  metrics: string[];
  series: Series[];
}

export interface Item {
  task: string;
  a: number | null;
  b: number | null;
  change: "gained" | "lost" | "same" | "unpaired";
}

export interface Items {
  metric: string;
  metrics: string[];
  a: string;
  b: string;
  gained: number;
  lost: number;
  same: number;
  difference: Difference | null;
  items: Item[];
  next: string | null;
}

export interface Rollout {
  id: string;
  arm: string;
  split: string;
  name: string;
  step: number;
  task: string;
  sample: number;
  status: string;
  reward: number | null;
  tokens: number | null;
  turns: number | null;
  preview: string;
}

export interface Rollouts {
  items: Rollout[];
  next: string | null;
  total: number;
  arms: string[];
  sets: string[];
  steps: number[];
  rewards: number[];
  reward_range: number[];
}

export interface RolloutDetail {
  rollout: Rollout;
  messages: Dict[];
  text: string;
  info: Dict;
  error: string;
  raw: Dict;
  previous: string | null;
  following: string | null;
}

export interface SpendLine {
  name: string;
  spend: Amounts;
}

export interface Spend {
  total: Amounts;
  by_arm: SpendLine[];
  by_work: SpendLine[];
  times: number[];
  usd: number[];
  tokens: number[];
}

export interface Node {
  id: string;
  kind: "experiment" | "dataset" | "benchmark" | "model" | "checkpoint";
  name: string;
  detail: string;
}

export interface Edge {
  source: string;
  target: string;
  kind: string;
}

export interface Lineage {
  nodes: Node[];
  edges: Edge[];
}

export interface Event {
  id: string;
  time: number | null;
  kind: string;
  data: Dict;
}

export interface Events {
  items: Event[];
  next: string | null;
}

export interface MetricDifference {
  metric: string;
  a: number;
  b: number;
  difference: number;
  low: number | null;
  high: number | null;
  n_tasks: number | null;
  remark: string;
}

export interface ConfigDifference {
  path: string;
  a: Json;
  b: Json;
}

export interface Comparison {
  a: Experiment;
  b: Experiment;
  metrics: MetricDifference[];
  config: ConfigDifference[];
  items: Items | null;
}

export interface LoopCheck {
  name: string;
  state: string;
  reason: string;
}

export interface LoopRound {
  round: number;
  stage: string;
  outcome: string | null;
  reason: string | null;
  traces: number;
  rows: number;
  tasks: number;
  left_out: Amounts;
  decision: string;
  experiment: string | null;
  experiment_id: string | null;
  verdict: string | null;
  checks: LoopCheck[];
  deployment: string | null;
  approvals: string[];
  usd: number;
}

export interface LoopDeployment {
  id: string;
  time: number | null;
  live: boolean;
}

export interface LoopRollback {
  replaced: string;
  instead: string | null;
  reason: string;
}

export interface LoopStep {
  stage: string;
  round: number;
  text: string;
  waits: boolean;
  time: number | null;
}

export interface LoopPage {
  system: string;
  state: string;
  live: string | null;
  stopped: boolean;
  usd: number;
  limits: Amounts;
  rounds: LoopRound[];
  deployments: LoopDeployment[];
  rollbacks: LoopRollback[];
  steps: LoopStep[];
  problem: string;
}

export interface Loops {
  items: LoopPage[];
}

export interface DataEntry {
  id: string;
  kind: "dataset" | "benchmark";
  name: string;
  version: number;
  split: string;
  rows: number | null;
  bytes: number | null;
  format: string;
  sha256: string;
  created: number | null;
  metadata: Dict;
}

export interface DataEntries {
  items: DataEntry[];
  next: string | null;
}

export interface DataRows {
  entry: DataEntry;
  rows: Dict[];
  next: string | null;
}

/** What a journal was at a moment, witnessed by the server. */
export interface Anchor {
  experiment: string;
  events: number;
  head: string;
  time: number;
}
