"""Attention outputs of an execution against float64, recomputed from what the trace says alone."""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch

from kvtwin.sim.decisions import Decisions
from kvtwin.traces import Trace

from ..check.reference import attention
from ..check.same_precision import torch_attention
from ..check.tolerance import allowed_error
from .content import ContentShape, Ids, TokenContent, TokenIds
from .executor import DeviceExecutor, ExecutedStep
from .tables import Key, in_words

MAX_FINDINGS = 20
_CARRIES = frozenset({"move", "copy", "share", "swap_in"})
# Multiplies a step's number, to look at other sequences in other steps (Knuth's 2**32 / golden ratio).
_SPREAD = 2654435761


@dataclass(frozen=True)
class Output:
    """Attention of one token in all layers, [num_layers, num_heads, head_dim], and how far it may be off."""

    values: npt.NDArray[np.float64]
    tolerance: float


class OutputCheck:
    """Looks for NaN in every output, and compares some with float64.

    Compared are the last new token of each of `rows` in every step, of one more sequence in every
    `every_steps`-th, and of one whose slots were moved, copied, shared or swapped in, whenever some were.
    `samples` keeps the outputs of `rows` by a hash of the ids of all tokens that are attended to.
    """

    def __init__(
        self,
        trace: Trace,
        executor: DeviceExecutor,
        shape: ContentShape,
        log: Decisions,
        rows: Collection[int],
        every_steps: int,
    ) -> None:
        self._executor = executor
        self._token_ids = TokenIds(trace)
        self._content, self._windows = TokenContent(shape, "cpu"), shape.windows
        self._rows, self._every_steps = rows, every_steps
        self._log, self._num_read = log, 0
        # Requests of which something has been carried about, by what was done, until they compute.
        self._carried: defaultdict[str, set[int]] = defaultdict(set)
        self.num_carried: Counter[str] = Counter()  # outputs compared for that reason
        self.samples: dict[bytes, Output] = {}
        self.num_outputs = 0
        self.num_compared = 0
        self.num_nan = 0
        self.worst_share = 0.0  # largest error, as a share of its tolerance; NaN if one is none
        self.findings: list[str] = []

    def after_step(self, step: ExecutedStep) -> None:
        """See `Observer`."""
        starts = step.batch.starts.tolist()
        self.num_outputs += starts[-1]
        is_nan = step.out.isnan().flatten(2).any(2).any(0)
        if bool(is_nan.any()):
            self._report_nan(step, is_nan.cpu().numpy())
        chosen = [place for place, (row, _) in enumerate(step.keys) if row in self._rows]
        if step.keys and step.number % self._every_steps == 0:
            chosen.append(step.number * _SPREAD % (1 << 32) % len(step.keys))
        chosen += self._places_of_carried(step.keys)
        for place in dict.fromkeys(chosen):
            self._compare(step, place, starts[place + 1] - 1)

    def _places_of_carried(self, keys: list[Key]) -> list[int]:
        """Of each thing that was done to slots since the last step, the first sequence that now reads them."""
        log, places = self._log, []
        for at in range(self._num_read, len(log.steps)):
            if log.actions[at] in _CARRIES:
                self._carried[log.actions[at]].add(log.rows[at])
        self._num_read = len(log.steps)
        for action, rows in self._carried.items():
            of_action = [place for place, (row, _) in enumerate(keys) if row in rows]
            self.num_carried[action] += len(of_action[:1])
            places += of_action[:1]
            rows.difference_update(keys[place][0] for place in of_action)
        return places

    def _report_nan(self, step: ExecutedStep, is_nan: npt.NDArray[np.bool_]) -> None:
        self.num_nan += int(is_nan.sum())
        for token in np.flatnonzero(is_nan).tolist():
            place = int(np.searchsorted(step.batch.starts, token, side="right")) - 1
            left = int(step.batch.starts[place + 1]) - token
            position = int(step.batch.context_lens[place]) - left
            self._find(f"step {step.number}, {_in_words(step.keys[place], position)}: NaN")

    def _compare(self, step: ExecutedStep, place: int, token: int) -> None:
        key, end = step.keys[place], int(step.batch.context_lens[place])
        ids = torch.from_numpy(self._ids_of(key, end))
        found = step.out[:, token].double().cpu().numpy()
        keys, values = self._content.of(ids, "key"), self._content.of(ids, "value")
        queries = self._content.of(ids[-1:], "query")
        scale, tolerance, share = queries.shape[-1] ** -0.5, 0.0, 0.0
        windows = self._windows or [0] * len(keys)
        for layer, (window, *inputs) in enumerate(zip(windows, queries, keys, values, strict=True)):
            exact = [part.double().numpy() for part in inputs]
            (expected,) = attention(*exact, scale=scale, window=window)
            (plain,) = torch_attention(*inputs, scale=scale, window=window).double().numpy()
            error = float(np.abs(plain - expected).max())
            allowed = allowed_error(error, float(np.abs(expected).max()), keys.dtype)
            distance = float(np.abs(found[layer] - expected).max())
            tolerance = max(tolerance, allowed)
            share = float(np.maximum(share, distance / allowed))  # stays NaN
            # Written so that NaN fails.
            if not distance <= allowed:
                self._find(
                    f"step {step.number}, {_in_words(key, end - 1)}, layer {layer}: attention is "
                    f"{distance:.3g} from float64, at most {allowed:.3g} is rounding"
                )
        self.num_compared += 1
        self.worst_share = float(np.maximum(self.worst_share, share))
        if key[0] in self._rows:
            self.samples[sha256(ids.numpy().tobytes()).digest()] = Output(found, tolerance)

    def _ids_of(self, key: Key, end: int) -> Ids:
        if key in self._executor.heirs:  # whose ancestors the trace does not know
            return self._executor.ids_of(key, end)[:end]
        return self._token_ids.of(*key, end)

    def _find(self, line: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(line)


def largest_difference(one: OutputCheck, other: OutputCheck) -> tuple[int, float]:
    """Between outputs of the same tokens: (how many, the largest difference as a share of what two may differ)."""
    shares = [
        float(np.abs(output.values - other.samples[token].values).max())
        / (output.tolerance + other.samples[token].tolerance)
        for token, output in one.samples.items()
        if token in other.samples
    ]
    return len(shares), float(np.max(shares, initial=0.0))


def _in_words(key: Key, position: int) -> str:
    return f"{in_words(*key)} position {position}"
