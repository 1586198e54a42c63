"""A deployment's KV pool under one engine's accounting, and whether the engine would start."""

import math
from dataclasses import dataclass
from fractions import Fraction

from kvtwin.traces import UserError

from .accounting import Accounting, SizedPool
from .bisect import largest_that
from .deployment import Deployment
from .terms import Term, sum_bytes

# Requests longer than this are not asked about: a pool that holds one has no limit.
NO_LIMIT_TOKENS = 2**40
# Committed tokens by which every window is full, so that a request only grows by its other layers.
BEYOND_WINDOWS_TOKENS = 2**32


@dataclass(frozen=True)
class Sizing:
    """What one rank of the pipeline stage that binds has, and what requests can do with it.

    `terms`, `stage`, `pool`: of the stage with the fewest blocks, which bind all. `num_blocks`:
    of every rank. `kv_bytes_per_token`: by which a long request grows, per rank, rounded up.
    `fixed_bytes_per_request`: what it holds however long it is: full windows and recurrent states.
    `longest_request`: tokens of the longest request that an empty pool serves, None if there is no
    limit; `longest_allowed` is capped at max_model_len. `concurrency`: requests of max_model_len, as
    the engine says. `problem`: why the engine would not start, or would serve less than asked for;
    empty if there is none. `starts`: whether the engine starts, if only to serve shorter requests.
    """

    accounting: str
    deployment: Deployment
    stage: int
    terms: tuple[Term, ...]
    pool: SizedPool
    num_blocks: int
    kv_bytes_per_token: int
    fixed_bytes_per_request: int
    longest_request: int | None
    longest_allowed: int
    concurrency: Fraction
    problem: str
    starts: bool

    @property
    def works(self) -> bool:
        """Whether the engine starts and serves requests of max_model_len."""
        return not self.problem

    @property
    def available_bytes(self) -> int:
        """What the terms leave for KV; may be negative."""
        return sum_bytes(self.terms)


def size(deployment: Deployment, accounting: Accounting) -> Sizing:
    """Size every pipeline stage; the one with the fewest blocks counts.

    Raises UserError where a setting contradicts the model, not where memory is short: that is told
    by `problem` (and `changes.changes_that_work` says what would help).
    """
    check_settings(deployment, accounting)
    stages = [
        _size_stage(deployment, accounting, stage)
        for stage in range(deployment.pipeline_parallel_size)
        if accounting.block_bytes(deployment, stage)
    ]
    if not stages:
        raise UserError(f"{deployment.model.name} keeps no KV: there is no pool to size")
    length = deployment.max_model_len
    stage, terms, pool = min(stages, key=lambda s: (s[2].concurrency(length), s[2].num_blocks))
    longest = largest_that(pool.fits, NO_LIMIT_TOKENS)
    growth, fixed = _growth(pool)
    return Sizing(
        accounting=accounting.name,
        deployment=deployment,
        stage=stage,
        terms=terms,
        pool=pool,
        num_blocks=min(sized.num_blocks for _, _, sized in stages),
        kv_bytes_per_token=math.ceil(growth),
        fixed_bytes_per_request=fixed,
        longest_request=None if longest == NO_LIMIT_TOKENS else longest,
        longest_allowed=min(longest, length),
        concurrency=pool.concurrency(length),
        problem=_problem(deployment, terms, pool),
        starts=pool.fits(1) and (accounting.starts_with_less or pool.fits(length)),
    )


def check_settings(deployment: Deployment, accounting: Accounting) -> None:
    """Raise UserError where a setting contradicts the model or the engine."""
    model, utilization = deployment.model, accounting.utilization(deployment)
    model.check_tensor_parallel(deployment.tensor_parallel_size)
    model.check_max_model_len(deployment.max_model_len)
    if deployment.pipeline_parallel_size > model.num_layers:
        raise UserError(
            f"--pipeline-parallel-size is {deployment.pipeline_parallel_size}; {model.name} has "
            f"{model.num_layers} layers; lower it to that or less"
        )
    if not 0 < utilization <= 1:
        raise UserError(
            f"{accounting.utilization_flag} is {utilization:g}; it must be above 0 and at most 1"
        )


def _size_stage(
    deployment: Deployment, accounting: Accounting, stage: int
) -> tuple[int, tuple[Term, ...], SizedPool]:
    terms = accounting.budget(deployment, stage)
    return stage, terms, accounting.pool(deployment, stage, sum_bytes(terms))


def _growth(pool: SizedPool) -> tuple[Fraction, int]:
    """(bytes of one more token, bytes that do not grow) of a request whose windows are full.

    Measured on what the pool holds of two long requests, of whole blocks.
    """
    shorter = BEYOND_WINDOWS_TOKENS // pool.block_size * pool.block_size
    growth = Fraction(pool.bytes_for(2 * shorter) - pool.bytes_for(shorter), shorter)
    return growth, math.ceil(pool.bytes_for(shorter) - growth * shorter)


def _problem(deployment: Deployment, terms: tuple[Term, ...], pool: SizedPool) -> str:
    """Why the deployment does not work, with both numbers; empty if it does."""
    available, length = sum_bytes(terms), deployment.max_model_len
    if not pool.fits(1):
        return _no_room(terms, available, pool)
    if pool.fits(length):
        return ""
    longest = largest_that(pool.fits, length)
    return (
        f"max_model_len ({length:,} tokens) is too large by {length - longest:,}: such a request needs "
        f"{_shown(pool.bytes_to_admit(length))} of KV and the pool has {_shown(pool.usable_bytes)} for requests"
    )


def _no_room(terms: tuple[Term, ...], available: int, pool: SizedPool) -> str:
    """Not even one token can be served."""
    needed = pool.num_reserved_blocks * pool.block_bytes + pool.bytes_to_admit(1)
    short = _shown(needed - available)
    if available <= 0:
        return f"no memory is left for KV: {_largest_term(terms)} by {short} at least"
    if needed <= available:
        return (
            f"a pool of {pool.num_blocks:,} blocks of {pool.block_size:,} tokens serves no request"
        )
    return (
        f"one block of {pool.block_size:,} tokens has {_shown(pool.block_bytes)}; with what the engine "
        f"reserves {_shown(needed)} are needed and {_shown(available)} are left for KV: "
        f"{_largest_term(terms)} by {short}"
    )


def _largest_term(terms: tuple[Term, ...]) -> str:
    """The term to blame: the largest one taken off, else the memory that was given."""
    taken_off = [term for term in terms if term.num_bytes < 0]
    if not taken_off:
        return f"{terms[0].name} ({_shown(terms[0].num_bytes)}) is too small"
    worst = min(taken_off, key=lambda term: term.num_bytes)
    return f"{worst.name} ({_shown(-worst.num_bytes)}) are too large"


def _shown(num_bytes: int) -> str:
    """GiB, or bytes where that would say little."""
    return f"{num_bytes / 2**30:,.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes:,} bytes"
