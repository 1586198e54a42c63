"""How much of its prompts an infinite prefix cache would have held."""

from dataclasses import dataclass

import numpy as np

from .prefixes import find_prefixes
from .trace import Trace

DEFINITION = (
    "infinite cache: a hit is the leading run of a prompt that an earlier request began with;"
    " requests in order of arrival, each cached before the next comes"
)
_TRACE_BLOCKS = "blocks as the trace has them: one for each id, a partial last one included"
_FULL_BLOCKS = "full blocks of the prompt, as engines cache them; tokens in hit blocks"


@dataclass(frozen=True)
class PrefixHits:
    """Hits of an infinite cache with blocks of `block_tokens`; `blocks` says which are counted."""

    block_tokens: int
    blocks: str
    num_hit_blocks: int
    num_blocks: int
    num_hit_tokens: int
    num_tokens: int  # of all prompts

    @property
    def block_share(self) -> float:
        return self.num_hit_blocks / self.num_blocks if self.num_blocks else 0.0

    @property
    def token_share(self) -> float:
        return self.num_hit_tokens / self.num_tokens


def prefix_hits(trace: Trace, block_tokens: int | None = None) -> tuple[PrefixHits, ...]:
    """Hits at the block size of the trace's content, and of full blocks of `block_tokens`.

    None of a trace without content.
    """
    parts = [(c, c.content) for c in trace.chunks if c.content is not None]
    if not parts:
        return ()
    prompts = np.concatenate([chunk.num_prompt_tokens for chunk, _ in parts])
    known = np.concatenate([content.num_known_tokens() for _, content in parts])
    known = np.minimum(known, prompts)
    seen = np.minimum(find_prefixes(trace).num_seen_tokens(), prompts)
    own = parts[0][1].block_tokens
    num_tokens = int(prompts.sum())
    # What a trace does not know of a prompt is in none of its blocks.
    hits = [
        PrefixHits(
            block_tokens=own,
            blocks=_TRACE_BLOCKS,
            num_hit_blocks=int(np.where(seen == known, -(-seen // own), seen // own).sum()),
            num_blocks=int((-(-known // own)).sum()),
            num_hit_tokens=int(np.where(seen == known, seen, seen // own * own).sum()),
            num_tokens=num_tokens,
        )
    ]
    if block_tokens is not None:
        hit_blocks = seen // block_tokens
        hits.append(
            PrefixHits(
                block_tokens=block_tokens,
                blocks=_FULL_BLOCKS,
                num_hit_blocks=int(hit_blocks.sum()),
                num_blocks=int((prompts // block_tokens).sum()),
                num_hit_tokens=int(hit_blocks.sum()) * block_tokens,
                num_tokens=num_tokens,
            )
        )
    return tuple(hits)
