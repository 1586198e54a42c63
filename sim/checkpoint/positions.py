"""How many tokens a model's positions reach."""

from .fields import Fields

# Shortest of those that are there, as vLLM 0.32 has it (model_arch_config_convertor.py).
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_LONGEST = 10**9
# Kinds of RoPE scaling whose files state the length after scaling (vLLM 0.32 config/model.py,
# `_get_and_verify_max_len`); others multiply it by their factor.
_SCALED_ALREADY = {
    "su",
    "longrope",
    "llama3",
    "yarn",
    "deepseek_yarn",
    "deepseek_llama_scaling",
    "default",
    "mrope",
}


def read_max_model_len(fields: Fields) -> int:
    """Tokens that the positions reach, scaling of RoPE included. Raises UserError if unstated."""
    lengths = [fields.whole(name, most=_LONGEST) for name in _LENGTHS if fields.has(name)]
    if fields.has("model_max_length"):  # goes before all others
        lengths = [fields.whole("model_max_length", most=_LONGEST)]
    if not lengths:
        fields.missing("max_position_embeddings")
    return min(int(min(lengths) * _factor(fields)), _LONGEST)


def positions_note(fields: Fields) -> str:
    """What vLLM does not serve by itself; empty where it serves all."""
    _, kind = _scaling(fields)
    if kind not in ("longrope", "su") or not fields.has("original_max_position_embeddings"):
        return ""
    unscaled = fields.whole("original_max_position_embeddings", most=_LONGEST)
    return f"vLLM serves {unscaled:,} tokens unless --max-model-len asks for more"


def _factor(fields: Fields) -> float:
    scaling, kind = _scaling(fields)
    # Gemma 3's files state the scaled length, whatever the kind.
    if scaling is None or kind in _SCALED_ALREADY or "gemma3" in fields.text("model_type"):
        return 1.0
    return scaling.number("factor", 1.0, least=1.0, most=10_000.0)


def _scaling(fields: Fields) -> tuple[Fields | None, str]:
    """The section about scaling of RoPE, and its kind."""
    scaling = fields.table("rope_scaling") or fields.table("rope_parameters")
    if scaling is None:
        return None, "default"
    return scaling, scaling.text("rope_type", scaling.text("type", "default"))
