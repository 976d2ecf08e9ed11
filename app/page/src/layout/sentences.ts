/** One-line texts of events and of decision reasons. */
import { number, plural } from "../format.ts";
import type { LoggedEvent, Study } from "../types.ts";
import { joinWords } from "./configuration.ts";

type Data = Record<string, unknown>;

const EVENT_TEXTS: Record<string, (data: Data) => string> = {
  PlanOpened: (data) => `a plan for trainer ${data["trainer"]} was opened`,
  StudySubmitted: () => "the study was submitted",
  ConfigurationSuggested: (data) => `a configuration was suggested${data["by"] ? ` by ${data["by"]}` : ""}`,
  SuggestionWithdrawn: (data) => `suggestion ${data["suggestion"]} was withdrawn${data["by"] ? ` by ${data["by"]}` : ""}`,
  ResultsLearned: (data) => `its sampler begins with ${(data["results"] as unknown[]).length} trials of ${data["source"]}`,
  TrialAdded: (data) => `trial ${data["trial"]} starts, to step ${data["steps"]}${reasonSuffix(data)}`,
  TrialExtended: (data) => `trial ${data["trial"]} continues to step ${data["steps"]}${reasonSuffix(data, true)}`,
  TrialStopped: (data) => `trial ${data["trial"]} is pruned${reasonSuffix(data)}`,
  TrialCancelled: (data) => `trial ${data["trial"]} was cancelled`,
  TrialRetried: (data) => `failed trial ${data["trial"]} is retried`,
  TrialPrioritized: (data) => `trial ${data["trial"]} has priority ${number(data["priority"] as number)}`,
  NoteAdded: (data) => `a note${typeof data["trial"] === "number" ? ` about trial ${data["trial"]}` : ""}: ${data["text"]}`,
  NoteCorrected: (data) => `a note was corrected: ${data["text"]}`,
  StudyLabelled: (data) => labelsText(data),
  StudyDeleted: () => "the study was deleted",
  StudyStruck: (data) => `results of the study were discarded: ${lastLine(data["reason"])}`,
  StudyPaused: () => "the study was paused",
  StudyResumed: () => "the study was resumed",
  StudyReopened: () => "the study was reopened",
  StudyCancelled: () => "the study was cancelled",
  StudyCompleted: () => "the study is completed",
  StudyFailed: (data) => `the study failed: ${data["error"]}`,
  StudyIsolated: (data) => `the trainer is not exact: results are discarded, and each trial is trained alone (${lastLine(data["reason"])})`,
  AuditRequested: () => "an audit was requested",
  AuditEnded: () => "the audit ended",
  ExactnessTested: (data) => `${VERIFICATIONS[String(data["proof"])] ?? "steps were compared"}: ${comparisonText(data)}`,
  ChainAssigned: (data) => `${slotsText(data)} assigned ${stagesText(data["stages"])}${data["proof"] ? ` for verification (${data["proof"]})` : ""}`,
  StageCompleted: (data) => `a stage was trained, in ${number(data["seconds"] as number, 3)} s`,
  ChainEnded: (data) => `a chain ended: ${data["outcome"]}`,
  StageFailed: (data) => `training failed after step ${data["step"]}: ${lastLine(data["error"])}`,
  Evaluated: (data) => `measured at step ${data["step"]}: ${metricsText(data["metrics"])}`,
  CheckpointKept: (data) => `the state at step ${data["step"]} was saved`,
  CheckpointCached: (data) => `slots of ${data["host"]} may resume from step ${data["step"]}, whose state is being uploaded to the store`,
  CheckpointReleased: (data) => `the state at step ${data["step"]} is no longer needed`,
  CheckpointDropped: (data) => `the state at step ${data["step"]} was dropped: ${data["reason"]}`,
  WeightsDropped: () => "the weights of an average were deleted",
  AverageNamed: (data) => `a mean of ${plural((data["shares"] as unknown[]).length, "state")} begins at step ${data["step"]}`,
  EnvironmentSeen: (data) => `packages and versions on ${data["device"]} were recorded`,
  InputsSeen: () => "the input data of the study were recorded",
  NeedsMore: (data) => `training from step ${data["step"]} needs ${data["ranks"]} slots of ${data["kind"] || "a kind"} at once`,
  RanksProfiled: (data) => `the speed on several slots was measured on ${data["kind"]}`,
  PackingProfiled: (data) => `the speed of packs was measured on ${data["device"]}`,
  PackingChosen: (data) => `the width of packs was chosen: ${data["reason"]}`,
  ExactnessLost: (data) => `not exact from step ${data["step"]} on: ${data["reason"]}`,
};

/** Verifications by the kind of proof. */
const VERIFICATIONS: Record<string, string> = {
  check: "the trainer was checked",
  handover: "the steps around a saved state were compared",
  whole: "a whole trial was compared",
  audit: "a stage was audited",
  evaluation: "the state was compared before and after evaluate()",
};

function comparisonText(data: Data): string {
  if (data["goes_on"]) return "the trainer runs, and the comparison has begun";
  if (data["unproven"]) return `not verified: ${data["unproven"]}`;
  if (data["difference"]) return String(data["difference"]);
  const suspicions = Object.entries((data["stray"] ?? {}) as Data);
  if (suspicions.length) return suspicions.map(([name, text]) => `${name} ${text}`).join("; ");
  return `all bits are equal, steps ${data["begin"]} to ${data["step"]}`;
}

export function eventText(event: LoggedEvent): string {
  return EVENT_TEXTS[event.type]?.(event.data as Data) ?? event.type;
}

/** The trials that a stage trains or verifies. */
export function servedText({ proof, trials, trial_count }: Pick<Study["progress"]["running"][number], "proof" | "trials" | "trial_count">): string {
  const served = trial_count > 1 ? plural(trial_count, "trial") : trials.length ? `trial ${trials[0]}` : "";
  if (proof === "check") return "checks the trainer";
  return proof ? `verifies ${served || "another study"}` : served || "another study's";
}

/** The tuner's reason as text. The reason of a promotion names the rung that it leads to; the text names the rung of the rank. */
export function reasonText(given: Data, isPromotion = false): string {
  const { rank, of, cut, rung } = given;
  const isRanked = rank !== undefined && cut !== undefined;
  const at = typeof rung === "number" ? `rung ${isPromotion && isRanked ? rung - 1 : rung}` : "";
  if (rank !== undefined && of !== undefined) {
    const best = cut === undefined ? "" : `, the best ${cut} ${cut === 1 ? "is" : "are"} promoted`;
    const drawn = given["drawn_among"] === undefined ? "" : `, drawn among ${given["drawn_among"]} equal results`;
    return `${at ? `${at}: ` : ""}rank ${rank} of ${of}${drawn}${best}`;
  }
  if (given["kill_threshold"] !== undefined) {
    return `${number(given["value"] as number)} is worse than the threshold ${number(given["kill_threshold"] as number)}`;
  }
  if (given["median"] !== undefined) {
    return `its best ${number(given["best"] as number)} is ${isPromotion ? "no worse" : "worse"} than the median ${number(given["median"] as number)}`;
  }
  if (typeof given["suggestion"] === "number") return `${at ? `${at}, ` : ""}suggestion ${given["suggestion"]}`;
  if (given["by"] === "user") return "asked for by a user";
  return at;
}

function reasonSuffix(data: Data, isPromotion = false): string {
  const text = reasonText((data["reason"] ?? {}) as Data, isPromotion);
  return text ? ` (${text})` : "";
}

/** "cpu0 was", or "cpu0 and cpu1 were" of a gang. */
function slotsText(data: Data): string {
  const lent = (data["members"] ?? []) as string[];
  return lent.length ? `${joinWords([String(data["slot"]), ...lent])} were` : `${data["slot"]} was`;
}

function stagesText(given: unknown): string {
  const all = given as { start: number; end: number }[];
  const steps = all.reduce((sum, stage) => sum + stage.end - stage.start, 0);
  return `${all.length === 1 ? "a stage" : `${all.length} stages`} of ${plural(steps, "step")}`;
}

function metricsText(given: unknown): string {
  const pairs = Object.entries(given as Record<string, number | null>);
  return pairs.map(([name, value]) => `${name} ${number(value)}`).join(", ");
}

function lastLine(text: unknown): string {
  return String(text).trim().split("\n").at(-1) ?? "";
}

function labelsText(data: Data): string {
  const tags = (data["tags"] as string[]).join(" ");
  const set = Object.entries(data["attributes"] as Data).map(([name, value]) => (value === null ? `${name} removed` : `${name} = ${JSON.stringify(value)}`));
  return [tags ? `tagged ${tags}` : "no tags", ...set].join(", ");
}
