/** The estimated time left of a study, smoothed as in stagetree/time_left.py. */

/** An estimate loses two thirds of its weight in this time. */
const SMOOTHING_SECONDS = 30;

/** Smooths the estimate, which halves and doubles as slots come to a study and leave it. */
export class TimeLeft {
  private at = 0;
  private end: number | null = null;

  /** The smoothed estimate after another one; while there is none, the last one counts down. All in seconds. */
  next(seconds: number | null, now: number): number | null {
    if (seconds !== null) {
      const before = this.end ?? now + seconds;
      const weight = 1 - Math.exp((this.at - now) / SMOOTHING_SECONDS);
      this.end = before + weight * (now + seconds - before);
      this.at = now;
    }
    return this.end === null ? null : Math.max(0, this.end - now);
  }
}
