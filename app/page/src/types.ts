/** The types of API responses, generated from the OpenAPI document. */
import type { components } from "./api";

type Schemas = components["schemas"];

export type Study = Schemas["Study"];
export type StudyPage = Schemas["StudyPage"];
export type Listed = Schemas["Listed"];
export type Columns = Schemas["Columns"];
export type Trial = Schemas["Trial"];
type Result = Schemas["Result"];
export type TrialDetail = Schemas["TrialDetail"];
export type Tree = Schemas["Tree"];
export type Logged = Schemas["Logged"];
export type Rungs = Schemas["Rungs"];
export type RankedRung = Schemas["RankedRung"];
export type Note = Schemas["Note"];
export type Timeline = Schemas["Timeline"];
export type SideBySide = Schemas["SideBySide"];
export type Blocks = Schemas["Blocks"];
export type History = Schemas["History"];
export type Schedules = Schemas["Schedules"];
export type Schedule = Schemas["Schedule"];
export type EventPage = Schemas["EventPage"];
export type LoggedEvent = Schemas["Event"];
export type SlotPage = Schemas["SlotPage"];
export type Slot = Schemas["Slot"];
export type Preview = Schemas["Preview"];
export type Problem = Schemas["Problem"];
export type Imagined = Schemas["Imagined"];
export type SamplerState = Schemas["SamplerState"];
export type Suggestion = Schemas["Suggestion"];
export type Suggestions = Schemas["Suggestions"];
export type Importance = Schemas["Importance"];
export type Branch = Schemas["Branch"];

export function trialCount({ counts }: Study): number {
  return Object.values(counts).reduce((sum, each) => sum + each, 0);
}

/** The result of a trial by the study's `value`: its best or its last measurement. */
export function resultOf({ value }: Study, trial: { best: Result | null; last: Result | null }): Result | null {
  return value === "best" ? trial.best : trial.last;
}

/** When the study ended, or else its plan's last event. Later events of the plan are of other studies. */
export function lastMoment(study: Pick<Study, "finished_at">, history: Pick<History, "at">): number {
  return study.finished_at ?? history.at;
}
