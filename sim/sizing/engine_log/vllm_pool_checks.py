"""What must hold between vLLM's blocks, tokens, concurrency and the memory for them.

Source: `v1/core/kv_cache_utils.py` (`get_kv_cache_capacity`, `_check_enough_kv_cache_memory`) of
0.32.0. Up to 0.19 the printed size is the pool's; later it is concurrency x length, cut to whole
tokens, where the last block of a request of that length is counted whole.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import NamedTuple

from .check import Check, compared, compared_with_any, missing, not_applicable
from .facts import LogFacts
from .interval import Interval

# What attention backends take, the default first; logs seldom state it.
_BLOCK_SIZES = (16, 1, 8, 32, 64, 128, 256)


class _BlockSize(NamedTuple):
    num_tokens: int
    reason: str

    def rounded_up(self, num_tokens: int) -> int:
        return -(-num_tokens // self.num_tokens) * self.num_tokens


def pool_checks(facts: LogFacts, kv_bytes_per_token: int | None, derived: str) -> Iterator[Check]:
    block = _block_size(facts)
    yield from _sizes(facts, block, derived)
    if kv_bytes_per_token is not None:
        yield from _memory(facts, block, kv_bytes_per_token, derived)
        yield from _refusal(facts, block, kv_bytes_per_token, derived)


def _block_size(facts: LogFacts) -> _BlockSize:
    """As stated, else the one of the usual sizes that all figures of the log are made with."""
    if facts.block_size is not None:
        return _BlockSize(facts.block_size.whole, f"blocks of {facts.block_size.whole} tokens")
    sizes = [_BlockSize(size, f"with blocks of {size} tokens, unstated") for size in _BLOCK_SIZES]
    if facts.num_gpu_blocks is None:
        return sizes[0]
    for block in sizes:
        if all(check.verdict == "agrees" for check in _sizes(facts, block, "")):
            return block
    return sizes[0]._replace(
        reason=f"with blocks of {_BLOCK_SIZES[0]} tokens; no usual size fits; sizes of models with"
        " window or state layers are derived"
    )


def _sizes(facts: LogFacts, block: _BlockSize, derived: str) -> Iterator[Check]:
    """Blocks, tokens and concurrency against each other."""
    blocks, tokens = facts.num_gpu_blocks, facts.num_tokens
    if blocks is not None and tokens is not None:
        what = f"{blocks.whole:,} blocks x block size"
        if derived:
            yield not_applicable(what, tokens, derived)
        else:
            pool = Interval.exactly(blocks.whole * block.num_tokens)
            printed = _printed_tokens(pool, facts, block)
            yield compared_with_any(what, tokens, printed, block.reason)
    concurrency, length = facts.max_concurrency, facts.concurrency_at
    if concurrency is None or length is None or (blocks is None and tokens is None):
        return
    longest, whole = length.whole, block.rounded_up(length.whole)
    if blocks is not None:
        what = f"{blocks.whole:,} blocks x block size / {longest:,} tokens of a request"
        held = blocks.whole * block.num_tokens
        requests = [Interval.exactly(Fraction(held, of)) for of in (longest, whole)]
    else:
        assert tokens is not None, "one of both was checked above"
        what = f"{tokens.whole:,} tokens / {longest:,} tokens of a request"
        cut = Interval(Fraction(tokens.whole, longest), Fraction(tokens.whole + 1, longest))
        requests = [cut, Interval.exactly(Fraction(tokens.whole, whole))]
    if derived:
        yield not_applicable(what, concurrency, derived)
    else:
        yield compared_with_any(what, concurrency, requests, block.reason)


def _printed_tokens(pool: Interval, facts: LogFacts, block: _BlockSize) -> list[Interval]:
    """What may be printed for a pool of so many tokens, by the versions' two ways."""
    length = facts.concurrency_at or facts.max_model_len
    if length is None:
        return [pool]
    share = Fraction(length.whole, block.rounded_up(length.whole))
    return [pool, Interval(pool.low * share - 1, pool.high * share)]


def _memory(
    facts: LogFacts, block: _BlockSize, kv_bytes_per_token: int, derived: str
) -> Iterator[Check]:
    """The memory for KV against the size that is printed."""
    available, size = facts.available_kv, facts.num_gpu_blocks or facts.num_tokens
    if size is None:
        return
    what = f"memory for KV / {kv_bytes_per_token:,} bytes per token"
    override, context_parallel = facts.num_gpu_blocks_override, facts.decode_context_parallel_size
    if derived:
        yield not_applicable(what, size, derived)
    elif available is None:
        yield not_applicable(what, size, missing(memory_for_KV=available))
    elif override is not None:
        reason = f"line {override.line_number} sets the number of blocks"
        yield not_applicable(what, size, reason)
    elif context_parallel is not None and context_parallel.value > 1:
        yield not_applicable(what, size, "ranks of a decode context share each token")
    else:
        tokens = Interval.of(available) / Interval.exactly(kv_bytes_per_token)
        # Whole blocks: what remains of the memory is less than one.
        pool = Interval(tokens.low - block.num_tokens, tokens.high)
        if size.unit == "blocks":
            printed = [pool / Interval.exactly(block.num_tokens)]
        else:
            printed = _printed_tokens(pool, facts, block)
        yield _on_all_ranks(compared_with_any(what, size, printed, block.reason), facts)


def _on_all_ranks(check: Check, facts: LogFacts) -> Check:
    """A smaller pool does not contradict the log where a rank that it leaves out may have less."""
    sizes = (facts.tensor_parallel_size, facts.pipeline_parallel_size)
    num_ranks = prod(stated.whole for stated in sizes if stated is not None)
    num_stating = sum("available_kv" in of_rank for of_rank in facts.by_rank.values())
    assert check.stated is not None, "a compared check has two sides"
    assert check.computed is not None, "a compared check has two sides"
    smaller = check.stated.high < check.computed.low
    if check.verdict == "disagrees" and smaller and num_stating < num_ranks:
        reason = f"{num_stating} of {num_ranks} ranks state their memory; another may have less"
        return replace(check, verdict="agrees", relation="<=", reason=reason)
    return check


def _refusal(
    facts: LogFacts, block: _BlockSize, kv_bytes_per_token: int, derived: str
) -> Iterator[Check]:
    """What vLLM says when one request of the longest length does not fit."""
    of_token = f"{kv_bytes_per_token:,} bytes per token"
    per_token = Interval.exactly(kv_bytes_per_token)
    needed, length = facts.needed_kv, facts.max_model_len
    if needed is not None and length is not None:
        what = f"{length.whole:,} tokens x {of_token}"
        if derived:
            yield not_applicable(what, needed, derived)
        else:
            whole = Interval.exactly(block.rounded_up(length.whole))
            yield compared(what, needed, whole * per_token, block.reason)
    estimated, there = facts.estimated_max_model_len, facts.checked_kv
    if estimated is not None and there is not None:
        what = f"memory for KV / {of_token}"
        if derived:
            yield not_applicable(what, estimated, derived)
        else:
            tokens = Interval.of(there) / per_token
            fitting = Interval(tokens.low - block.num_tokens, tokens.high)
            yield compared(what, estimated, fitting, block.reason)
