"""Ends a run that gets nowhere: a policy or an engine from outside may plan steps for ever."""

from __future__ import annotations

import numpy as np

from .requests import RequestTable

_LOOK_EVERY = 1 << 15  # steps: a look is a pass over all requests
# Of those that run, the first one computes at least a token in each step, and nobody takes its memory. So some request
# ends within about as many steps as the longest has tokens.
_PATIENCE = 10


class Progress:
    """Counts the steps since a request has last been seen to end."""

    def __init__(self, requests: RequestTable) -> None:
        self._requests = requests
        self._num_ended = 0
        self._num_steps = 0
        self._look_at = _LOOK_EVERY

    def count(self, num_steps: int) -> None:
        """So many steps were run. INV-5: no request needs as many as have gone by since one has ended."""
        self._num_steps += num_steps
        if self._num_steps >= self._look_at:
            self._look()

    def _look(self) -> None:
        requests = self._requests
        ended = np.frombuffer(requests.finished_ns, dtype=np.int64) >= 0
        num_ended = int(np.count_nonzero(ended))
        if num_ended > self._num_ended:
            self._num_ended, self._num_steps = num_ended, 0
        else:
            longest = max(
                requests.num_prompt_tokens[row] + requests.num_output_tokens[row]
                for row in requests.accepted
            )
            assert self._num_steps <= _PATIENCE * longest, (
                f"INV-5: no request has ended in {self._num_steps} steps, {num_ended} of "
                f"{len(requests.accepted)} did before; the longest has {longest} tokens"
            )
        self._look_at = self._num_steps + _LOOK_EVERY
