/** A question to the API, and the refusal of one. */

export type Params = { [name: string]: string | number | string[] | null | undefined };

/** Why a question was refused: a sentence that says what to do. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly error: string,
    message: string,
  ) {
    super(message);
  }
}

/** The question as text: the same for the same question, whatever the order of its parameters. */
export function question(path: string, params: Params = {}): string {
  const search = new URLSearchParams();
  for (const name of Object.keys(params).sort()) {
    const value = params[name];
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}
