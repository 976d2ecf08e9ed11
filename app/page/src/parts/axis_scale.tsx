/** The choice between a linear and a logarithmic metric axis. Automatic: logarithmic if the values span orders of magnitude. */
import { route, setQuery } from "../route.ts";

export function AxisScale({ field }: { field: string }) {
  return (
    <label>
      metric{" "}
      <select value={route.value.query[field] ?? ""} onChange={(event) => setQuery({ [field]: event.currentTarget.value })}>
        <option value="">automatic</option>
        <option value="log">log</option>
        <option value="linear">linear</option>
      </select>
    </label>
  );
}
