"""What `kvtwin explain hits` says, for people and for scripts."""

from dataclasses import asdict
from typing import Any

from kvtwin.traces.hit_losses import DEFINITION, HitLosses


def loss_lines(losses: HitLosses) -> list[str]:
    """From what could hit to what does, a line a step, and a sentence."""
    cache = "without end" if losses.num_blocks is None else f"of {losses.num_blocks:,} blocks"
    steps = [
        ("prompt tokens", losses.num_prompt_tokens),
        ("an infinite token-granular cache hits", losses.num_infinite_hit_tokens),
        (f"lost to blocks of {losses.block_tokens:,}", -losses.lost_to_blocks),
        ("lost to the last token, always computed", -losses.lost_to_last_token),
    ]
    if losses.num_blocks is not None:
        steps += [
            (f"lost to capacity, {losses.num_blocks:,} blocks", -losses.lost_to_capacity),
            ("lost to eviction order, LRU and not Belady's", -losses.lost_to_order),
        ]
    steps.append(("hits", losses.num_hit_tokens))
    lines = [
        f"{what:<46}{tokens:>16,}{100 * tokens / losses.num_prompt_tokens:>9.2f} %"
        for what, tokens in steps
    ]
    grain = losses.known_block_tokens
    if grain is not None and grain > 1:
        lines.append(f"note: the trace says what prompts are made of in steps of {grain:,} tokens")
    lines.append(f"note: {DEFINITION}")
    share = 100 * losses.num_hit_tokens / losses.num_prompt_tokens
    why = "" if losses.reason is None else f": {losses.reason}"
    return [*lines, f"A cache {cache} hits {share:.2f} % of the prompt tokens{why}."]


def loss_facts(losses: HitLosses) -> dict[str, Any]:
    """The same as JSON types."""
    return asdict(losses) | {"reason": losses.reason, "definition": DEFINITION}
