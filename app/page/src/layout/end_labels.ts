/** Places of labels beside the ends of lines. */

/** Move places apart until neighbours are `gap` apart, within the range as far as there is room. The order is kept. */
export function spreadPlaces(places: number[], gap: number, [low, high]: [number, number]): number[] {
  const order = places.map((_, index) => index).sort((a, b) => places[a]! - places[b]!);
  const found = [...places];
  let least = low;
  for (const index of order) {
    found[index] = Math.max(found[index]!, least);
    least = found[index]! + gap;
  }
  let most = high;
  for (const index of order.reverse()) {
    found[index] = Math.min(found[index]!, most);
    most = found[index]! - gap;
  }
  return found;
}

/** How many labels fit into the range. */
export function labelCapacity(gap: number, [low, high]: [number, number]): number {
  return Math.max(0, Math.floor((high - low) / gap) + 1);
}

export interface Box {
  x: number;
  y: number;
  width: number;
}

/** The boxes, each as wide as its text and centred at its y, that overlap none before them. */
export function freeBoxes(boxes: Box[], gap: number): boolean[] {
  const placed: Box[] = [];
  return boxes.map((box) => {
    const isFree = placed.every((other) => Math.abs(other.y - box.y) >= gap || other.x >= box.x + box.width || box.x >= other.x + other.width);
    if (isFree) placed.push(box);
    return isFree;
  });
}
