/** What the API answers. Made by `make types-web` from `dashboard/shapes` and `record/view`; change those. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Dict = { [key: string]: Json };
export type Amounts = { [name: string]: number };

export interface ActionAnswer {
  answer: string;
}

export interface Approval {
  subject: string;
  state: string;
  about: string;
  by: string;
  reason: string;
  time: number;
}

export interface ArmDetail {
  arm: ArmView;
  config: Dict;
  checkpoints: Dict[];
  datasets: Dict[];
  benchmarks: Dict[];
  examples: string;
  story: string;
}

export interface ArmView {
  arm: string;
  run: string;
  seed: number | null;
  status: string;
  problem: string;
  metrics: Amounts;
  score: number | null;
  score_step: number | null;
  step: number | null;
  total_steps: number | null;
  spend: Amounts;
  findings: string[];
}

export interface AttentionItem {
  id: string;
  kind: string;
  experiment: string;
  path: string;
  what: string;
  command: string;
}

export interface CampaignCandidate {
  number: number;
  text: string;
  by: string;
  taken_by: string;
  taken_until: number;
}

export interface CampaignDecided {
  time: number | null;
  action: string;
  family: string;
  reason: string;
  by: string;
}

export interface CampaignState {
  name: string;
  terms: Dict;
  state: string;
  why: string;
  spent: Amounts;
  left: Amounts;
  candidates: CampaignCandidate[];
  suggestions: string[];
  decisions: CampaignDecided[];
  deadline: number | null;
  approvals: Approval[];
  problem: string;
}

export interface Campaigns {
  items: CampaignState[];
}

export interface ComparedRun {
  experiment: ShownExperiment;
  run: string;
  score: RunView | null;
  differences: PairedDifference[];
  items: Items | null;
}

export interface ComparedRuns {
  runs: ComparedRun[];
  config: ConfigDifference[];
}

export interface ComparedTask {
  task: string;
  a: number | null;
  b: number | null;
  change: "gained" | "lost" | "same" | "unpaired";
  prompt: string;
}

export interface ConfigDifference {
  path: string;
  values: Json[];
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

export interface Curves {
  metric: string;
  x: string;
  axes: string[];
  metrics: string[];
  series: Series[];
}

export interface DataEntries {
  items: DataEntry[];
  next: string | null;
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

export interface DataRows {
  entry: DataEntry;
  rows: Dict[];
  next: string | null;
}

export interface Difference {
  value: number;
  low: number | null;
  high: number | null;
  p: number | null;
}

export interface Edge {
  source: string;
  target: string;
  kind: string;
}

export interface Events {
  items: JournalLine[];
  next: string | null;
}

export interface ExperimentDetail {
  experiment: ShownExperiment;
  claim: RegisteredClaim;
  metrics: string[];
  threats: string[];
  next: string[];
  not_scored: { [name: string]: string };
  looks: Dict | null;
  interim: InterimLook[];
  noise_floor: Dict | null;
  smallest_detectable: number | null;
  commands: { [name: string]: string };
  conclusion_text: string;
  requests: ControlRequest[];
  log: string;
  config: Dict;
  conclusion: Dict;
}

export interface ExperimentLineage {
  nodes: Node[];
  edges: Edge[];
}

export interface Experiments {
  items: ShownExperiment[];
  next: string | null;
  total: number;
}

export interface Failure {
  arm: string;
  reason: string;
}

export interface InterimLook {
  look: number;
  of: number;
  seeds: number;
  verdict: string;
  error: number | null;
  chance: number | null;
  ends: boolean;
  why: string;
}

export interface Items {
  metric: string;
  metrics: string[];
  a: string;
  b: string;
  gained: number;
  lost: number;
  same: number;
  difference: PairedDifference | null;
  items: ComparedTask[];
  next: string | null;
}

export interface JournalAnchor {
  experiment: string;
  events: number;
  head: string;
  time: number;
}

export interface JournalLine {
  id: string;
  time: number | null;
  kind: string;
  data: Dict;
}

export interface Live {
  arms_running: number;
  step: number | null;
  total_steps: number | null;
  metric: string;
  recent: number[];
}

export interface LoopCheck {
  name: string;
  state: string;
  reason: string;
}

export interface LoopDeployment {
  id: string;
  time: number | null;
  live: boolean;
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

export interface LoopRollback {
  replaced: string;
  instead: string | null;
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

export interface LoopStep {
  stage: string;
  round: number;
  text: string;
  waits: boolean;
  time: number | null;
}

export interface Loops {
  items: LoopPage[];
}

export interface Node {
  id: string;
  kind: "experiment" | "dataset" | "benchmark" | "model" | "checkpoint";
  name: string;
  detail: string;
}

export interface Note {
  text: string;
  time: number | null;
  author: string;
}

export interface Overview {
  total: number;
  by_status: Amounts;
  by_verdict: Amounts;
  spend: Amounts;
  trials: Amounts;
  models: string[];
  algorithms: string[];
  tags: string[];
  running: ShownExperiment[];
  attention: AttentionItem[];
  version: number;
  reading: Progress | null;
}

export interface PageSession {
  mode: "local" | "server";
  project: string;
  project_name: string;
  scopes: Scope[];
  version: string;
  can_stop: boolean;
}

export interface PairedDifference {
  metric: string;
  first: number;
  second: number;
  difference: number;
  low: number | null;
  high: number | null;
  n_tasks: number | null;
  n_seeds: number[];
  remark: string;
  covers: string;
  stderr: number | null;
  df: number | null;
  population: string;
}

export interface Progress {
  done: number;
  of: number;
}

export interface Question {
  metric: string;
  split: string;
  tasks: string;
  direction: string;
  model: string;
  backend: string;
}

export interface RegisteredClaim {
  text: string;
  metric: string;
  direction: string;
  min_effect: number | null;
  baseline: string;
  registered: boolean;
  registered_at: number | null;
  sha256: string;
}

export interface RolloutDetail {
  rollout: RolloutLine;
  messages: Dict[];
  text: string;
  info: Dict;
  expected: string;
  error: string;
  raw: Dict;
  previous: string | null;
  following: string | null;
}

export interface RolloutLine {
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
  items: RolloutLine[];
  next: string | null;
  total: number;
  arms: string[];
  sets: string[];
  steps: number[];
  rewards: number[];
  reward_range: number[];
}

export interface RunView {
  run: string;
  is_baseline: boolean;
  is_best: boolean;
  model: string;
  backend: string;
  algorithm: string;
  data: string;
  params: { [name: string]: string };
  varied: Dict;
  tasks: string;
  score: number | null;
  low: number | null;
  high: number | null;
  covers: string;
  step: number | null;
  selection_score: number | null;
  seed_scores: number[];
  n_seeds: number;
  n_tasks: number | null;
  n_samples: number | null;
  failures: number;
  difference: Difference | null;
  checkpoint: string;
  n_arms: number;
  spend: Amounts;
}

export interface SavedNote {
  id: string;
  text: string;
  author: string;
  time: number | null;
}

export type Scope = "read" | "write" | "admin";

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

export interface ShownExperiment {
  id: string;
  name: string;
  path: string;
  status: string;
  started: number | null;
  ended: number | null;
  hypothesis: string;
  description: string;
  question: Question;
  verdict: string;
  sentence: string;
  next: string;
  error_rate: number | null;
  same_evidence: string;
  metric: string;
  mode: string;
  baseline: string;
  best_run: string;
  best_score: number | null;
  best_low: number | null;
  best_high: number | null;
  best_seeds: number;
  best_tasks: number | null;
  best_covers: string;
  best_step: number | null;
  runs: RunView[];
  arms: ArmView[];
  n_runs: number;
  n_arms: number;
  n_seeds: number;
  n_done: number;
  failures: Failure[];
  n_failures: number;
  spend: Amounts;
  tags: string[];
  parent_id: string;
  notes: Note[];
  invalidated: string;
  flags: string[];
  remarks: string[];
  models: string[];
  algorithms: string[];
  backends: string[];
  params: Dict;
  varied: string[];
  config_sha256: string;
  n_notes: number;
  version: number;
  live: Live | null;
}

export interface SpendBreakdown {
  total: Amounts;
  by_arm: SpendPart[];
  times: number[];
  usd: number[];
  tokens: number[];
}

export interface SpendPart {
  name: string;
  spend: Amounts;
}

export interface Tags {
  tags: string[];
}
