/** Pages of a study's events. */

/** Events on a page, all of them of the study: those of other studies on its plan are not counted. */
export const PAGE_SIZE = 500;

/** Which events the address names: those around a linked one, those before or after a position, or the last ones. */
export function pageRange({ event, before, after, from }: Record<string, string>): Record<string, string> {
  if (Number(event)) return { after: String(Math.max(0, Number(event) - PAGE_SIZE / 2)) };
  if (Number(before)) return { before: before! };
  const start = after ?? from; // "from" in addresses of earlier versions
  if (Number(start)) return { after: start! };
  return { before: String(Number.MAX_SAFE_INTEGER) };
}
