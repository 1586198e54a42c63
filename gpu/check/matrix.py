"""The cases: a plain one per kernel, each axis around it, and combinations."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from .case import LAYOUTS, Case

DECODES = ("paged_decode", "contiguous_decode")
ATTENTION = (*DECODES, "paged_prefill")
KERNELS = (*ATTENTION, "store_kv", "merge_partials", "copy_blocks", "swap_blocks")

HEAD_DIMS = (128, 256, 80, 96, 13, 20, 24, 112, 120, 192)
BLOCK_SIZES = (1, 2, 3, 5, 7, 8, 32, 64)
GROUPS = (1, 3, 4, 5, 6, 7, 8, 12, 16, 71)
DTYPES = ("bfloat16", "float32")
WINDOWS = (1, 4, 15, 16, 17, 39, 40, 41)
SOFT_CAPS = (2.0, 50.0)
SPLITS = ((2, 1), (3, 1), (16, 1), (32, 1), (4, 20))
# Beyond one tile of the kernel's own choice, with a last tile of one key.
LONG_LENS = (300, 257, 64, 1)
NUM_COMBINATIONS = 12


def matrix(kernels: Sequence[str] = KERNELS, *, quick: bool = False) -> list[Case]:
    """The cases of `kernels`; with `quick` those that every check should run."""
    cases = [case for kernel in kernels for case in _cases(kernel)]
    return [case for case in cases if case.is_quick] if quick else cases


def _cases(kernel: str) -> Iterator[Case]:
    plain = _plain(kernel)
    yield replace(plain, is_quick=True)
    for field, values in _axes(kernel).items():
        for number, value in enumerate(values):
            yield replace(plain, **{field: value}, is_quick=number == 0)
    yield from _more(kernel, plain)
    yield from _combinations(kernel, plain)


def _plain(kernel: str) -> Case:
    if kernel == "paged_prefill":
        # Nothing new, a decode, a chunk, whole prompts, a prompt behind a cached prefix.
        return Case(kernel, context_lens=(3, 1, 16, 17, 40), query_lens=(0, 1, 4, 17, 9))
    if kernel == "store_kv":
        return Case(kernel, context_lens=(0, 3, 17))
    return Case(kernel)


def _axes(kernel: str) -> dict[str, tuple[Any, ...]]:
    """What is varied alone, around the plain case."""
    axes: dict[str, tuple[Any, ...]] = {"dtype": DTYPES, "head_dim": HEAD_DIMS}
    if kernel == "merge_partials":
        return axes | {"sinks": (True,), "num_splits": (2, 3, 16, 33)}
    axes["num_kv_heads"] = (1, 3)
    if kernel != "contiguous_decode":
        axes |= {"block_size": BLOCK_SIZES, "layout": LAYOUTS[1:]}
    if kernel in ATTENTION:
        axes |= {"group": GROUPS, "window": WINDOWS, "soft_cap": SOFT_CAPS, "sinks": (True,)}
    return axes


def _more(kernel: str, plain: Case) -> Iterator[Case]:
    """What takes more than one field."""
    if kernel in DECODES:
        for num_splits, min_split_tokens in SPLITS:
            # Many splits of few sequences, so that there are not too many programs to interpret.
            few = {"context_lens": (40, 17, 0), "num_kv_heads": 1} if num_splits > 4 else {}
            split = replace(plain, **few, num_splits=num_splits, min_split_tokens=min_split_tokens)
            yield replace(split, is_quick=num_splits == 3)
            if num_splits in (2, 16):
                yield replace(split, sinks=True, window=17)
        long = replace(plain, context_lens=LONG_LENS, tile_tokens=0, num_splits=2)
        yield from (replace(long, dtype=dtype) for dtype in ("float16", *DTYPES))
        yield replace(plain, context_lens=(0, 0, 0), sinks=True)
        # More sequences than torch takes at a time, in no order.
        many = tuple((7 * number) % 45 for number in range(20))
        yield replace(plain, context_lens=many, num_kv_heads=1)
    if kernel == "paged_prefill":
        prompts = {"context_lens": (9, 9, 33), "query_lens": (9, 5, 33)}
        yield replace(plain, num_padding=5, is_quick=True)
        yield replace(plain, num_padding=20, sinks=True)  # more than a tile of it
        yield replace(plain, **prompts, window=4, sinks=True, soft_cap=5.0)
        long = replace(plain, context_lens=(100, 70), query_lens=(90, 70), tile_tokens=0)
        yield from (replace(long, dtype=dtype) for dtype in ("float16", *DTYPES))
    if kernel == "store_kv":
        yield replace(plain, num_padding=3, is_quick=True)
        # More heads than a program takes, of which the last takes one.
        yield replace(plain, num_kv_heads=33, head_dim=128, context_lens=(0, 3))
    if kernel in ATTENTION:
        # Blocks as large as a tile, longer than one, and contexts around both.
        yield replace(plain, block_size=16, tile_tokens=32)
        yield replace(plain, block_size=48)


def _combinations(kernel: str, plain: Case) -> Iterator[Case]:
    """Random choices of everything at once, the same in every run."""
    if kernel in ("merge_partials", "copy_blocks", "swap_blocks"):
        return
    chooser = random.Random(kernel)
    for number in range(NUM_COMBINATIONS):
        fields: dict[str, Any] = {
            "dtype": chooser.choice(("float16", *DTYPES)),
            "head_dim": chooser.choice((64, *HEAD_DIMS)),
            "num_kv_heads": chooser.choice((1, 2, 3)),
        }
        if kernel != "contiguous_decode":
            fields["block_size"] = chooser.choice((16, *BLOCK_SIZES))
            fields["layout"] = chooser.choice(LAYOUTS)
        if kernel in ATTENTION:
            fields["group"] = chooser.choice((2, *GROUPS[:-1]))
            fields["window"] = chooser.choice((0, 0, *WINDOWS))
            fields["soft_cap"] = chooser.choice((0.0, *SOFT_CAPS))
            fields["sinks"] = chooser.choice((False, True))
            lens = [chooser.choice((1, 2, 15, 16, 17, 33, 50)) for _ in range(3)]
            fields["context_lens"] = tuple(lens)
        if kernel in DECODES:
            fields["num_splits"] = chooser.choice((1, 2, 3, 7))
        if kernel == "paged_prefill":
            fields["query_lens"] = tuple(chooser.randint(0, length) for length in lens)
        yield replace(plain, **fields, is_quick=number == 0)
