"""The requests of a trace as the engine sees them: clipped, judged for rejection, and recorded row by row."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from kvtwin.traces import Trace, Waits

from .policies.policy import Policy
from .prompts import Pieces, prompts_of
from .samples import ONE_SAMPLE, Sampling, branch_outputs

EXCEEDS_GRANT = "largest need exceeds"  # and what, as the policy calls it
UNKNOWN = -1  # a time that has not come, a max_tokens that nobody gave


@dataclass(frozen=True)
class Rejection:
    """Why a request was turned away at arrival: `value` is above (or, for a prompt, not below) `limit`."""

    row: int
    reason: str
    value: int
    limit: int


@dataclass
class RequestTable:
    """One entry per request of the trace, by row. Lengths are tokens, times ns after the first arrival.

    With `waits`, `arrival_ns` of a request that waits for others is the recorded one until it is known when it comes.
    """

    arrival_ns: list[int]
    num_prompt_tokens: list[int]
    num_output_tokens: list[int]  # after clipping
    trace_output_tokens: list[int]
    max_tokens: list[int]  # at most what is left of max_model_len
    rejections: list[Rejection] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)  # rows, in order of arrival
    prompts: list[Pieces] = field(
        default_factory=list
    )  # by row, answers behind them if it reuses those; empty if the policy has no use for them
    priorities: list[int] = field(default_factory=list)  # smaller is served first; empty: all alike
    # Output tokens of each sequence of each request, after clipping, its own first; empty if the policy serves one.
    branch_outputs: list[tuple[int, ...]] = field(default_factory=list)
    beam_width: int = 1
    waits: Waits | None = None  # who waits for whom in a closed loop; None: all come as recorded
    trace_arrival_ns: list[int] = field(init=False)
    admitted_ns: array[int] = field(init=False)
    first_token_ns: array[int] = field(init=False)
    finished_ns: array[int] = field(init=False)
    num_preemptions: array[int] = field(init=False)
    num_hit_tokens: array[int] = field(init=False)  # of the prompt, found in the pool at admission

    def __post_init__(self) -> None:
        num = len(self.arrival_ns)
        self.trace_arrival_ns = list(self.arrival_ns)
        self.admitted_ns = array("q", [UNKNOWN]) * num
        self.first_token_ns = array("q", [UNKNOWN]) * num
        self.finished_ns = array("q", [UNKNOWN]) * num
        self.num_preemptions = array("q", [0]) * num
        self.num_hit_tokens = array("q", [0]) * num

    @property
    def longest_output_tokens(self) -> list[int]:
        """Output tokens of the longest sequence of each request, after clipping."""
        return list(map(max, self.branch_outputs)) or self.num_output_tokens

    @property
    def num_generated_tokens(self) -> list[int]:
        """Output tokens of all sequences of each request, after clipping."""
        return list(map(sum, self.branch_outputs)) or self.num_output_tokens

    @property
    def clipped_rows(self) -> set[int]:
        """Accepted requests whose output was cut to max_tokens or to what is left of max_model_len."""
        clipped, original = self.num_output_tokens, self.trace_output_tokens
        return {row for row in self.accepted if clipped[row] < original[row]}

    @classmethod
    def from_trace(
        cls,
        trace: Trace,
        policy: Policy,
        max_model_len: int,
        max_tokens: int | None,
        sampling: Sampling = ONE_SAMPLE,
        waits: Waits | None = None,
    ) -> RequestTable:
        """Clip outputs to `max_tokens` (the request's own goes first) and to `max_model_len`, and judge every request.

        A request is rejected iff its prompt is not below max_model_len, its sequences are more than a step may have,
        or its largest need exceeds `policy.largest_grant`. `sampling` is for a policy that `serves_branches`.
        """
        chunks = trace.chunks
        prompt = np.concatenate([chunk.num_prompt_tokens for chunk in chunks])
        original = np.concatenate([chunk.num_output_tokens for chunk in chunks])
        asked = np.concatenate([chunk.max_tokens for chunk in chunks])
        left = max_model_len - prompt
        most = np.minimum(left, np.where(asked == UNKNOWN, max_tokens or left, asked))
        output = np.where(left > 0, np.minimum(original, most), original)
        table = cls(
            arrival_ns=np.concatenate([chunk.arrival_ns for chunk in chunks]).tolist(),
            num_prompt_tokens=prompt.tolist(),
            num_output_tokens=output.tolist(),
            trace_output_tokens=original.tolist(),
            max_tokens=most.tolist(),
            prompts=prompts_of(trace, policy.reuses_answers) if policy.reuses_prefixes else [],
            priorities=[
                priority
                for chunk in chunks
                for priority in (
                    [0] * chunk.num_requests if chunk.priority is None else chunk.priority.tolist()
                )
            ],
            waits=waits,
        )
        if policy.serves_branches:
            table.branch_outputs = branch_outputs(trace, sampling, output, most)
            table.beam_width = sampling.beam_width
        table._judge(policy, max_model_len)
        return table

    def _judge(self, policy: Policy, max_model_len: int) -> None:
        largest_need, limit = policy.largest_need, policy.largest_grant
        branches, most_branches = self.branch_outputs, policy.max_num_seqs
        lengths = zip(self.num_prompt_tokens, self.num_output_tokens, self.max_tokens, strict=True)
        for row, (num_prompt, num_output, max_tokens) in enumerate(lengths):
            if num_prompt >= max_model_len:
                self.rejections.append(
                    Rejection(row, "prompt is not below max_model_len", num_prompt, max_model_len)
                )
            elif branches and (num_branches := len(branches[row])) > most_branches:
                self.rejections.append(
                    Rejection(row, "more sequences than max_num_seqs", num_branches, most_branches)
                )
            elif (
                need := policy.group_need(num_prompt, branches[row])
                if branches
                else largest_need(num_prompt, num_output, max_tokens)
            ) > limit:
                self.rejections.append(
                    Rejection(row, f"{EXCEEDS_GRANT} {policy.largest_grant_is}", need, limit)
                )
            else:
                self.accepted.append(row)
