/** The slots of the whole service, with their workers, stages and states. */
import { useEffect } from "preact/hooks";
import { changeCount, canWrite, useAnswer } from "../data.ts";
import { ageText, percent, plural, timeText } from "../format.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { formatRoute } from "../route.ts";
import type { Slot, SlotPage } from "../types.ts";

const REFRESH_MILLISECONDS = 3000;
const MARKS: Record<string, string> = { idle: "○", busy: "◐", lent: "◑", quarantined: "△", lost: "✕" };

export function AllSlots() {
  const answer = useAnswer<SlotPage>("slots?limit=1000");
  const estimates = useAnswer<SlotPage>("slots?limit=1000&estimates=true"); // computing estimates may take longer
  const errors = new Map(estimates.data?.items.map((slot) => [slot.name, slot.estimate_error]));
  useEffect(() => {
    document.title = "Slots · stagetree";
    const timer = setInterval(() => !document.hidden && (changeCount.value += 1), REFRESH_MILLISECONDS);
    return () => clearInterval(timer);
  }, []);
  return (
    <Panel title="Slots and workers" class="wide" isPage>
      <Loaded answer={answer}>
        {({ items }) =>
          items.length === 0 ? (
            <p class="quiet">
              {canWrite.value
                ? "No worker has registered yet. Start one with “stagetree up”, or with “stagetree worker gpu0” on a machine of a cluster."
                : "No worker is running: this store is open read only. “stagetree up” on it starts workers."}
            </p>
          ) : (
            <div class="scroll" tabIndex={0} role="group" aria-label="All slots">
              {items.every((slot) => slot.state === "lost") && (
                <p class="quiet">No worker is running: the stack of these slots has ended. “stagetree up” on this store starts new workers.</p>
              )}
              <table class="list">
                <thead>
                  <tr>
                    <th>Slot</th>
                    <th>State</th>
                    <th>Device</th>
                    <th>Host</th>
                    <th>Stage</th>
                    <th>Study</th>
                    <th>Trainers</th>
                    <th title="The median error of the time estimates of its stages">Estimate error</th>
                    <th>Last heartbeat</th>
                  </tr>
                </thead>
                <tbody>
                  {items.map((slot) => (
                    <Row key={slot.name} slot={slot} error={errors.get(slot.name)} />
                  ))}
                </tbody>
              </table>
            </div>
          )
        }
      </Loaded>
    </Panel>
  );
}

function Row({ slot, error }: { slot: Slot; error: Slot["estimate_error"] | undefined }) {
  const study = slot.study ?? slot.lent_to?.study;
  return (
    <tr>
      <th scope="row">{slot.name}</th>
      <td>
        <span class="state">
          <span aria-hidden="true">{MARKS[slot.state]}</span> {slot.state}
        </span>
        {slot.note && <p class="quiet">{slot.note}</p>}
        {slot.quarantined_until && <p class="quiet">until {timeText(slot.quarantined_until)}</p>}
      </td>
      <td>{slot.device}</td>
      <td>{slot.host}</td>
      <td>
        {slot.stage ? (
          <>
            {slot.stage.proof && "verification, "}step {slot.stage.step} of {slot.stage.end}{" "}
            <progress value={slot.stage.step - slot.stage.start} max={Math.max(1, slot.stage.end - slot.stage.start)} aria-label={`${slot.name}: step ${slot.stage.step}`} />
          </>
        ) : slot.lent_to ? (
          `trial ${slot.lent_to.trial}, with ${slot.lent_to.slot}`
        ) : (
          "–"
        )}
      </td>
      <td>{study ? <a href={formatRoute(["studies", study])}>{study}</a> : "–"}</td>
      <td class="words">{Object.keys(slot.trainers).join(", ") || "–"}</td>
      <td>{error ? `${error.error < 1 ? percent(error.error) : "over 100 %"}, ${plural(error.stages, "stage")}` : "–"}</td>
      <td>{ageText(Math.max(0, Date.now() - slot.seen_at * 1000))} ago</td>
    </tr>
  );
}
