import type { Study } from "../types.ts";

/** Every view of a study takes the study, and the event after which it is looked at; null for now. */
export interface ViewProps {
  study: Study;
  at: number | null;
}
