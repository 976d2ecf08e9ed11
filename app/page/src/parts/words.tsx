/** A sentence in which names stand between backticks, as in the terminal: here they are code. */
export function Words({ text }: { text: string }) {
  return (
    <>
      {text.split("`").map((part, place) => (place % 2 ? <code key={place}>{part}</code> : part))}
    </>
  );
}
