/** What is in one text and not in another, word by word. */

export interface Piece {
  text: string;
  isNew: boolean;
}

const MOST_WORDS = 1500;

/** The words of `text`, each marked when `other` does not have it in the same order (longest common subsequence). */
export function markNew(other: string, text: string): Piece[] {
  const before = other.split(/(\s+)/).filter(Boolean);
  const after = text.split(/(\s+)/).filter(Boolean);
  if (before.length > MOST_WORDS || after.length > MOST_WORDS) return [{ text, isNew: false }];
  const width = before.length + 1;
  const common = new Uint16Array(width * (after.length + 1));
  for (let row = after.length - 1; row >= 0; row -= 1) {
    for (let column = before.length - 1; column >= 0; column -= 1) {
      const at = row * width + column;
      common[at] =
        after[row] === before[column]
          ? (common[at + width + 1] ?? 0) + 1
          : Math.max(common[at + width] ?? 0, common[at + 1] ?? 0);
    }
  }
  const pieces: Piece[] = [];
  const add = (word: string, isNew: boolean) => {
    const last = pieces.at(-1);
    if (last && last.isNew === isNew) last.text += word;
    else pieces.push({ text: word, isNew });
  };
  let column = 0;
  after.forEach((word, row) => {
    while (column < before.length && before[column] !== word && (common[row * width + column + 1] ?? 0) >= (common[(row + 1) * width + column] ?? 0)) column += 1;
    const same = before[column] === word;
    if (same) column += 1;
    add(word, !same && word.trim() !== "");
  });
  return pieces;
}
