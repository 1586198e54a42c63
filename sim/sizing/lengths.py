"""How many requests of given lengths a pool holds at a time."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtwin.traces import Trace, UserError

from .accounting import SizedPool

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LengthMix:
    """Prompts and outputs (tokens, int64 of shape [n]) that stand for a load.

    `num_rejected`: requests left out because their prompt is not shorter than `max_model_len`.
    `num_clipped`: outputs cut to what is left of it.
    """

    name: str
    num_prompt_tokens: Int64
    num_output_tokens: Int64
    num_rejected: int = 0
    num_clipped: int = 0

    @classmethod
    def of_trace(cls, trace: Trace, max_model_len: int) -> "LengthMix":
        """The lengths of a trace. Raises UserError if no prompt is short enough."""
        prompts = np.concatenate([chunk.num_prompt_tokens for chunk in trace.chunks])
        outputs = np.concatenate([chunk.num_output_tokens for chunk in trace.chunks])
        return cls.of_lengths(trace.name, prompts, outputs, max_model_len)

    @classmethod
    def of_lengths(
        cls, name: str, prompts: Int64, outputs: Int64, max_model_len: int
    ) -> "LengthMix":
        """Leave out and clip as at arrival. Raises UserError if no prompt is short enough."""
        accepted = prompts < max_model_len
        if not accepted.any():
            raise UserError(
                f"--lengths {name}: the shortest prompt has {prompts.min():,} tokens and "
                f"max_model_len is {max_model_len:,}; no request can be served: raise "
                "--max-model-len"
            )
        prompts, outputs = prompts[accepted], outputs[accepted]
        kept = np.minimum(outputs, max_model_len - prompts)
        return cls(
            name=name,
            num_prompt_tokens=prompts,
            num_output_tokens=kept,
            num_rejected=int((~accepted).sum()),
            num_clipped=int((kept < outputs).sum()),
        )


@dataclass(frozen=True)
class MixCapacity:
    """What a pool holds of a mix.

    Means are over the decode steps of all requests, because a request of many steps is there for
    longer: that is what an engine under load sees. A request of P prompt and O output tokens holds
    P, P + 1, ... P + O - 1 committed tokens in its O steps. The time of prefill is not counted.

    `num_running`: requests that fill the pool if memory is taken as it is needed.
    `num_running_reserved`: if each takes at its start what it holds at its end.
    `num_too_long`: requests that an empty pool cannot serve.
    """

    mean_resident_tokens: float
    num_running: float
    num_running_reserved: float
    num_too_long: int


def mix_capacity(pool: SizedPool, mix: LengthMix) -> MixCapacity:
    """How many requests of `mix` are in `pool` at a time, in the long run.

    The pool holds at least one token.
    """
    prompts, outputs = mix.num_prompt_tokens, mix.num_output_tokens
    ends = prompts + outputs - 1
    taken = _pool_shares(pool, int(prompts.min()), int(ends.max()))
    offset = int(prompts.min())
    before = np.concatenate([[0.0], np.cumsum(taken)])
    num_steps = float(outputs.sum())
    in_steps = before[ends - offset + 1] - before[prompts - offset]
    tokens = float((outputs * (prompts + ends) / 2).sum())
    longest_served = _longest_served(pool, np.unique(ends))
    return MixCapacity(
        mean_resident_tokens=tokens / num_steps,
        num_running=num_steps / float(in_steps.sum()),
        num_running_reserved=num_steps / float((outputs * taken[ends - offset]).sum()),
        num_too_long=int((ends > longest_served).sum()),
    )


def _pool_shares(pool: SizedPool, shortest: int, longest: int) -> npt.NDArray[np.float64]:
    """Share of the pool that one request of `shortest` ... `longest` tokens (both included) takes."""
    # Within a block nothing changes: one evaluation each.
    first = -(-shortest // pool.block_size)
    blocks = range(first, -(-longest // pool.block_size) + 1)
    shares = np.array([float(pool.share_held(n * pool.block_size)) for n in blocks])
    lengths = np.arange(shortest, longest + 1)
    return shares[-(-lengths // pool.block_size) - first]


def _longest_served(pool: SizedPool, ends: Int64) -> int:
    """The longest of the ascending `ends` that an empty pool can serve, or 0.

    Bisection: a longer request never fits better.
    """
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        if pool.fits(int(ends[middle])):
            low = middle + 1
        else:
            high = middle
    return int(ends[low - 1]) if low else 0
