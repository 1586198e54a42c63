"""What a trace says before anything runs: how long each sequence gets, and which tokens it is made of."""

from collections.abc import Sequence

import numpy as np

from kvtwin.traces import Trace

from ..twin.content import Ids, TokenIds

Key = tuple[int, int]  # row of the trace, branch
_GROUP = 0x9B05688C2B3E6C1F  # an odd word, which multiples of are far apart


class PlannedTokens:
    """Lengths after clipping, planned ends and tokens of the sequences of a trace.

    A request's own `max_tokens` goes before the limit of the run, and no sequence is longer than
    `max_model_len`. The last token is never computed: E = P + O - 1.
    """

    def __init__(
        self,
        trace: Trace,
        max_model_len: int,
        max_tokens: int | None,
        branch_outputs: Sequence[Sequence[int]] = (),
        num_groups: int = 1,
    ) -> None:
        """`branch_outputs`: by row, tokens of its sequences, where a request has several.

        `num_groups`: of layers. With more than one, the branch of a key is a group, for which the one sequence of a
        request has a table, and ids are codes of that group.
        """
        self._has_groups = num_groups > 1
        self._token_ids = TokenIds(trace)
        self._ids: dict[Key, Ids] = {}
        self._branch_outputs = branch_outputs
        self.num_prompt_tokens: list[int] = []
        self.num_output_tokens: list[int] = []
        self.num_reusable_tokens: list[int] = []  # of the prompt: those the trace says something of
        for chunk in trace.chunks:
            prompt, asked = chunk.num_prompt_tokens, chunk.max_tokens
            limit = np.where(asked > 0, asked, max_tokens or max_model_len)
            limit = np.minimum(limit, max_model_len - prompt)
            known = 0 * prompt if chunk.content is None else chunk.content.num_known_tokens()
            self.num_prompt_tokens += prompt.tolist()
            self.num_output_tokens += np.minimum(chunk.num_output_tokens, limit).tolist()
            self.num_reusable_tokens += np.minimum(known, prompt).tolist()

    def end(self, key: Key) -> int:
        """E of a sequence, in tokens."""
        row, branch = key[0], 0 if self._has_groups else key[1]
        num_output = self._branch_outputs[row][branch] if branch else self.num_output_tokens[row]
        return self.num_prompt_tokens[row] + num_output - 1

    def ids(self, key: Key) -> Ids:
        """Ids of the tokens at positions 0 to E, that one included."""
        if key not in self._ids:
            (row, branch), num_tokens = key, self.end(key) + 1
            if self._has_groups:
                self._ids[key] = in_group(self._token_ids.of(row, 0, num_tokens), branch)
            else:
                self._ids[key] = self._token_ids.of(row, branch, num_tokens)
        return self._ids[key]

    def where(self, token: int) -> str:
        """A token in words: the first sequence seen that has it, and the position."""
        for key, ids in self._ids.items():
            positions = np.flatnonzero(ids == token)
            if len(positions):
                kind = "group" if self._has_groups else "branch"
                return f"{in_words(key, kind)} position {positions[0]}"
        return "a token of nobody"


def in_group(ids: Ids, group: int) -> Ids:
    """Codes of tokens as a group of layers has them: different for each group, ids themselves for the first one."""
    word = group * _GROUP % (1 << 64)
    codes: Ids = ids + np.uint64(word).astype(np.int64)
    return codes


def in_words(key: Key, kind: str = "branch") -> str:
    """A sequence in a message, or with `kind` "group" its table for a group of layers."""
    row, number = key
    return f"request {row} {kind} {number}" if number else f"request {row}"
