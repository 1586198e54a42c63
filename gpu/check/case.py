"""One configuration of one kernel."""

from dataclasses import dataclass, fields

import torch

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# K and V: tokens before heads; heads before tokens; both in one tensor, block by block; K as the
# first and V as the second; rows wider than the head dim.
LAYOUTS = ("NHD", "HND", "interleaved", "mixed", "padded")


@dataclass(frozen=True)
class Case:
    """Shapes and options; what a kernel has no use for is left at its default.

    `query_lens`: new tokens of each sequence (prefill), none longer than its context.
    `num_padding`: rows behind the last token that belong to nobody. `tile_tokens`: keys at a time;
    0: the kernel's own choice. `is_quick`: part of the quick check.
    """

    kernel: str
    dtype: str = "float16"
    head_dim: int = 64
    block_size: int = 16
    num_kv_heads: int = 2
    group: int = 2
    context_lens: tuple[int, ...] = (0, 1, 15, 16, 17, 40)
    query_lens: tuple[int, ...] = ()
    num_padding: int = 0
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    layout: str = "NHD"
    num_splits: int = 1
    min_split_tokens: int = 1
    tile_tokens: int = 16
    is_quick: bool = False

    def __post_init__(self) -> None:
        assert self.dtype in DTYPES, self.dtype
        assert self.layout in LAYOUTS, self.layout
        if self.query_lens:
            pairs = zip(self.query_lens, self.context_lens, strict=True)
            assert all(query <= context for query, context in pairs), self

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def label(self) -> str:
        """The fields that are not the default's, in words."""
        changed = [
            f"{field.name}={_text(getattr(self, field.name))}"
            for field in fields(self)
            if field.name not in {"kernel", "is_quick"}
            and getattr(self, field.name) != field.default
        ]
        return " ".join(changed) or "plain"


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
