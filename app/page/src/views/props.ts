import type { Study } from "../types.ts";

export interface ViewProps {
  study: Study;
  /** The event after which the study is shown; null for its latest state. */
  at: number | null;
}
