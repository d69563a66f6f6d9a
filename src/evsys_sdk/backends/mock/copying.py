"""The copy head: attention that finds earlier matches in the context and proposes their continuations.

It makes the untrained model able to learn from its context, as language models are:
- *induction*: the last tokens occurred earlier; propose the token that followed. Longer matches count for more.
- *quoting*: what has been answered so far repeats something the prompt announced (after a colon) or listed (after a
  comma or a bullet); propose its next token, and the end of the turn where the announced text ends. At first, what the
  message just before this one says counts for more than what earlier ones said.

Every kind of match has two learned numbers: how much attention it draws, against a sink that draws nothing, and how
strongly it then speaks for its token. Matching ignores case and treats all white space alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .packing import Ints, Packed, SpanHashes
from .tokenizer import MESSAGE_END, MESSAGE_START, VOCABULARY

type Floats = NDArray[np.floating[Any]]

_LONGEST_MATCH: Final = 8
_INDUCTION_KINDS: Final = _LONGEST_MATCH - 1
_BLOCK, _INLINE, _ITEM = range(3)
"""What a cue announces: a block of lines after a colon, the rest of a line after a colon, an item of a list."""

KINDS: Final = _INDUCTION_KINDS + 3 * 3
"""Induction by length of the match (2..8), then block, inline and item: first token out of the message before this one,
first token out of an earlier message, later tokens."""

INITIAL_SCORES: Final = (
    *(-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0),
    *(6.0, 2.0, 2.0),
    *(4.0, 0.0, 0.0),
    *(8.0, 5.0, 5.0),
)
INITIAL_STRENGTHS: Final = (
    *(3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
    *(12.0, 7.0, 7.0),
    *(12.0, 7.0, 7.0),
    *(12.0, 12.0, 12.0),
)

_MOST_SOURCES: Final = 32
"""How many earlier places one position looks at; bounds the work on repetitive text."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Every (query, proposed token) pair of a packed batch; `query` counts within the queries asked for."""

    query: Ints
    token: Ints
    kind: Ints

    def among(self, queries: Ints, total: int) -> Matches:
        """The matches of some of the `total` queries, renumbered."""
        place = np.full(total, -1)
        place[queries] = np.arange(len(queries))
        kept = place[self.query] >= 0
        return Matches(place[self.query[kept]], self.token[kept], self.kind[kept])


@dataclass(frozen=True, slots=True)
class Proposals:
    """The matches' contribution to the logits: log(1 + sum of attention * exp(strength)) per proposed token."""

    flat: Ints
    """Distinct (query, token) pairs, as indices into the flattened logits."""
    member: Ints
    """The pair of each match."""
    attention: Floats
    loudness: Floats
    """exp(strength) of each match."""
    total: Floats
    """1 + sum, for each distinct pair."""

    def add_to(self, logits: Floats) -> None:
        """Add the proposals to `logits` in place."""
        logits.reshape(-1)[self.flat] += np.log(self.total)


def find_matches(packed: Packed, queries: Ints) -> Matches:
    """The matches at `queries`, positions of `packed`."""
    folded, headers = _FOLD[packed.tokens], _header_ends(packed)
    induced, quoted = _induction(packed, folded, headers, queries), _quotes(packed, folded, headers, queries)
    return Matches(
        np.concatenate((induced.query, quoted.query)),
        np.concatenate((induced.token, quoted.token)),
        np.concatenate((induced.kind, quoted.kind)),
    )


def propose(matches: Matches, scores: Floats, strengths: Floats, queries: int) -> Proposals:
    """Distribute the attention of each query over its matches and the sink, whose score is 0."""
    # With the sink's score 0, the largest exponent is never above 0.
    top = max(0.0, float(scores.max()))
    drawn = np.exp(scores - top)[matches.kind]
    shared = _sum_by(matches.query, drawn, queries) + np.exp(-top)
    attention = (drawn / shared[matches.query]).astype(scores.dtype)
    loudness = np.exp(strengths)[matches.kind]
    flat, member = np.unique(matches.query * VOCABULARY + matches.token, return_inverse=True)
    spoken = _sum_by(member, attention * loudness, len(flat))
    return Proposals(flat, member, attention, loudness, (1 + spoken).astype(scores.dtype))


def backward(matches: Matches, proposals: Proposals, grad_logits: Floats) -> tuple[Floats, Floats]:
    """Gradients with respect to scores and strengths."""
    upstream = (grad_logits.reshape(-1)[proposals.flat] / proposals.total)[proposals.member]
    spoken = proposals.attention * upstream * proposals.loudness
    per_query = _sum_by(matches.query, spoken, len(grad_logits))
    drawn = spoken - proposals.attention * per_query[matches.query]
    grad_scores, grad_strengths = _sum_by(matches.kind, drawn, KINDS), _sum_by(matches.kind, spoken, KINDS)
    return grad_scores.astype(grad_logits.dtype), grad_strengths.astype(grad_logits.dtype)


def _sum_by(group: Ints, values: Floats, groups: int) -> NDArray[np.float64]:
    return np.bincount(group, weights=values.astype(np.float64), minlength=groups)


def _induction(packed: Packed, folded: Ints, headers: Ints, queries: Ints) -> Matches:
    previous = np.concatenate(([0], folded[:-1]))
    key = (packed.sequence * VOCABULARY + previous) * VOCABULARY + folded
    key = np.where(packed.offset > 0, key, -1 - np.arange(len(packed)))  # a first token has no pair to match
    order = np.argsort(key, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    group_start = np.searchsorted(key[order], key[queries], side="left")
    sources = np.minimum(place[queries] - group_start, _MOST_SOURCES)
    query, rank = _expand_counts(sources)
    source = order[place[queries][query] - 1 - rank]

    readable = _readable(packed, headers, queries)[query]
    kept = readable >= 2
    query, source, readable = query[kept], source[kept], readable[kept]
    position = queries[query]
    matching = np.ones(len(query), bool)
    length = np.full(len(query), 2)
    for back in range(2, _LONGEST_MATCH):
        inside = (packed.offset[source] >= back) & (readable > back)
        matching &= inside & (folded[np.maximum(position - back, 0)] == folded[np.maximum(source - back, 0)])
        length += matching
    return Matches(query, packed.tokens[source + 1], length - 2)


def _readable(packed: Packed, headers: Ints, queries: Ints) -> Ints:
    """How many of the last tokens a match may use: inside a message those of its text and the line break before it.

    Every turn of a role has the same header; if it counted, each turn would begin by repeating the one before.
    """
    header_ends = headers[packed.message[queries]]
    in_text = (header_ends >= 0) & (queries >= header_ends)
    return np.where(in_text, queries - header_ends, packed.offset[queries]) + 1


def _quotes(packed: Packed, folded: Ints, headers: Ints, queries: Ints) -> Matches:
    cues, cue_types = _cues(packed)
    header_ends = headers[packed.message[queries]]
    answering = (header_ends >= 0) & (queries >= header_ends)
    message_starts = packed.message_starts[packed.message[queries]]
    last = np.searchsorted(cues, message_starts, side="left")
    first = np.searchsorted(cues, packed.starts[packed.sequence[queries]], side="left")
    sources = np.where(answering, np.minimum(last - first, _MOST_SOURCES), 0)
    query, rank = _expand_counts(sources)
    cue = last[query] - 1 - rank

    answered = queries[query] - header_ends[query]
    hashes = SpanHashes(folded)
    spans = hashes.of(header_ends[query], queries[query] + 1)
    # Quotes end before the answer's message, so that it does not quote itself.
    fits = cues[cue] + answered + 1 < message_starts[query]
    quoted = hashes.of(cues[cue], np.where(fits, cues[cue] + answered + 1, cues[cue]))
    keep = fits & (spans == quoted)
    query, cue, answered = query[keep], cue[keep], answered[keep]

    source = cues[cue] + answered + 1
    token = np.where(_ends_here(packed, source, cue_types[cue]) & (answered > 0), MESSAGE_END, packed.tokens[source])
    earlier = packed.message[cues[cue]] < packed.message[queries[query]] - 1
    kind = _INDUCTION_KINDS + cue_types[cue] + np.where(answered > 0, 6, np.where(earlier, 3, 0))
    return Matches(query, token, kind)


def _cues(packed: Packed) -> tuple[Ints, Ints]:
    """White space after which the prompt announces or lists something, and the kind of cue."""
    tokens = packed.tokens
    # The offsets mask values rolled in from another sequence.
    before = np.where(packed.offset >= 1, np.roll(tokens, 1), 0)
    further = np.where(packed.offset >= 2, np.roll(tokens, 2), ord("\n"))
    after = np.roll(tokens, -1)
    bullet_next = (after == ord("-")) | (after == ord("*")) | (after == ord("\n"))
    space, newline, colon = tokens == ord(" "), tokens == ord("\n"), before == ord(":")
    bullet = space & ((before == ord("-")) | (before == ord("*"))) & (further == ord("\n"))
    listed = (space & (before == ord(","))) | bullet
    block, inline = newline & colon & ~bullet_next, space & colon
    cues = np.flatnonzero(block | inline | listed)
    return cues, np.where(block[cues], _BLOCK, np.where(inline[cues], _INLINE, _ITEM))


def _header_ends(packed: Packed) -> Ints:
    """Per message, the newline that ends its role header; -1 where there is none."""
    ends = np.full(len(packed.message_starts), -1)
    newlines = np.flatnonzero(packed.tokens == ord("\n"))[::-1]
    headed = packed.tokens[packed.message_starts[packed.message[newlines]]] == MESSAGE_START
    ends[packed.message[newlines[headed]]] = newlines[headed]  # the last assignment, the first newline, stays
    return ends


def _ends_here(packed: Packed, source: Ints, cue_type: Ints) -> NDArray[np.bool_]:
    """Whether the announced text ends at `source`."""
    token, after = packed.tokens[source], packed.tokens[np.minimum(source + 1, len(packed) - 1)]
    blank_line = (token == ord("\n")) & (after == ord("\n"))
    full_stop = (token == ord(".")) & _ENDS_SENTENCE[after]
    line_over = _ENDS_ITEM[token] | full_stop
    is_block: NDArray[np.bool_] = cue_type == _BLOCK
    return (is_block & blank_line) | (~is_block & line_over)


def _expand_counts(counts: Ints) -> tuple[Ints, Ints]:
    """For counts [2, 0, 1]: owners [0, 0, 2] and ranks [0, 1, 0]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def _fold(token: int) -> int:
    if token in b" \t\r\n":
        return ord(" ")
    return ord(chr(token).lower()) if token < 128 else token


_FOLD: Final = np.array([_fold(token) if token < 256 else token for token in range(VOCABULARY)], np.int64)
_ENDS_ITEM: Final = np.isin(np.arange(VOCABULARY), [ord(mark) for mark in ",;:\n"])
_ENDS_SENTENCE: Final = np.isin(np.arange(VOCABULARY), [ord(" "), ord("\n"), MESSAGE_START, MESSAGE_END])
