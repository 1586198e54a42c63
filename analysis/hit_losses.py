"""What `kvtwin explain hits` says, for people and for scripts."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kvtwin.traces.hit_losses import DEFINITION, MOST, HitLosses

LONGEST_BAR = 40
SMALLEST_CAUSE_PERCENT = 0.1


def loss_lines(losses: HitLosses) -> list[str]:
    """From what could hit to what does, a line a step; hits by capacity; the verdict last."""
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
    lines = [f"{what:<46}{tokens:>16,}{_percent(losses, tokens):>9.2f} %" for what, tokens in steps]
    lines += _curve_lines(losses)
    grain = losses.known_block_tokens
    if grain is not None and grain > 1:
        lines.append(f"note: the trace says what prompts are made of in steps of {grain:,} tokens")
    lines.append(f"note: {DEFINITION}")
    return [*lines, verdict(losses)]


def verdict(losses: HitLosses) -> str:
    """What hits, why the rest does not, and how large a cache is worth it."""
    cache = "without end" if losses.num_blocks is None else f"of {losses.num_blocks:,} blocks"
    hits = _percent(losses, losses.num_hit_tokens)
    said = f"A cache {cache} hits {hits:.2f} % of the prompt tokens"
    if losses.reason is not None:
        return f"{said}: {losses.reason}."
    causes = {
        "nobody sent them before": losses.num_new_tokens,
        f"they are behind the last full block of {losses.block_tokens:,}": losses.lost_to_blocks,
        "the last token of a prompt is always computed": losses.lost_to_last_token,
        "they do not fit into the cache": losses.lost_to_capacity,
        "LRU had evicted them where Belady's order would not": losses.lost_to_order,
    }
    shown = [
        f"{why} ({_percent(losses, tokens):.2f} %)"
        for why, tokens in sorted(causes.items(), key=lambda cause: -cause[1])
        if _percent(losses, tokens) >= SMALLEST_CAUSE_PERCENT
    ]
    if shown:
        said += f"; the main cause of misses is that {', the next that '.join(shown[:2])}"
    return f"{said}; {losses.blocks_for_most:,} blocks get {100 * MOST:.0f} % of the hits of a cache without end."


def loss_facts(losses: HitLosses) -> dict[str, Any]:
    """The same as JSON types."""
    return asdict(losses) | {
        "reason": losses.reason,
        "definition": DEFINITION,
        "verdict": verdict(losses),
    }


def _curve_lines(losses: HitLosses) -> Iterator[str]:
    if not losses.curve:
        return
    yield "hits of an LRU cache by its capacity, % of the prompt tokens:"
    most = losses.curve[-1].num_hit_tokens
    for point in losses.curve:
        bar = "#" * round(LONGEST_BAR * point.num_hit_tokens / most)
        share = _percent(losses, point.num_hit_tokens)
        yield f"{point.num_blocks:>15,} blocks{share:>9.2f} %  {bar}".rstrip()


def _percent(losses: HitLosses, tokens: int) -> float:
    return 100 * tokens / losses.num_prompt_tokens
