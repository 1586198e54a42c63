"""How far each attention layer looks back."""

from .family import Family
from .fields import Fields

_WINDOWED = {"sliding_attention", "local_attention", "local", "swa"}
_FULL = {"full_attention", "attention", "global_attention", "global"}


def layer_kinds(fields: Fields, family: Family, num_layers: int) -> tuple[str, ...]:
    """`full`, `window`, `chunk` or `recurrent` for each layer.

    `layer_types` says it; else the rule of the model's class, which is every layer alike where it
    has none. Raises UserError for types it does not know.
    """
    types = fields.array("layer_types")
    if types:
        if len(types) != num_layers:
            fields.refuse("layer_types", f"must have {num_layers} entries, not {len(types)}")
        return tuple(_kind(fields, entry) for entry in types)
    period = fields.whole("sliding_window_pattern", family.window_period or 1)
    if family.window_period:
        # Every `period`-th layer is full.
        rest = "recurrent" if family.recurrent else "window"
        return tuple("full" if (i + 1) % period == 0 else rest for i in range(num_layers))
    if family.full_interval:
        interval = fields.whole("no_rope_layer_interval", family.full_interval)
        return tuple("full" if (i + 1) % interval == 0 else "chunk" for i in range(num_layers))
    first = fields.whole("max_window_layers", 0, least=0) if family.window_is_optional else 0
    return tuple("full" if i < first else "window" for i in range(num_layers))


def windows(fields: Fields, family: Family, kinds: tuple[str, ...]) -> tuple[int, ...]:
    """Tokens that each layer looks back on, its own included; 0: all.

    A chunk of `attention_chunk_size` counts as a window of that length: the most it looks back on.
    """
    window = fields.whole("sliding_window", 0, least=0)
    if family.window_is_optional and not fields.flag("use_sliding_window"):
        window = 0
    chunk = fields.whole("attention_chunk_size", 0, least=0) if "chunk" in kinds else 0
    tokens = {"window": window, "chunk": chunk}
    return tuple(tokens.get(kind, 0) for kind in kinds)


def _kind(fields: Fields, entry: object) -> str:
    if not isinstance(entry, str):
        fields.refuse("layer_types", "must hold strings")
    if entry in _FULL:
        return "full"
    if entry in _WINDOWED:
        return "window"
    if entry == "chunked_attention":
        return "chunk"
    if entry in ("mamba", "linear_attention"):
        return "recurrent"
    return fields.refuse(
        "layer_types", f"must not hold {str(entry)[:40]!r}, which is not known here"
    )
