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
# Kinds of RoPE scaling whose files state the length after scaling, as Transformers has it; of others
# it is multiplied by their factor, if they have one (vLLM 0.32 config/model.py:
# _get_and_verify_max_len; earlier ones multiplied the original length of YaRN, vllm-project/vllm#56446).
_SCALED_ALREADY = {
    "su",
    "longrope",
    "llama3",
    "yarn",
    "deepseek_yarn",
    "telechat3-yarn",
    "deepseek_llama_scaling",
}
_LARGEST_FACTOR = 10_000.0


def read_max_model_len(fields: Fields) -> int:
    """Tokens that the positions reach, scaling of RoPE included. Raises UserError if unstated."""
    return min(int(_stated_length(fields) * _factor(fields)), _LONGEST)


def positions_note(fields: Fields) -> str:
    """What vLLM does not serve by itself; empty where it serves all."""
    sections = _scaling_sections(fields)
    kinds = {_kind(section) for section in sections}
    if kinds & {"longrope", "su"} and fields.has("original_max_position_embeddings"):
        unscaled = fields.whole("original_max_position_embeddings", most=_LONGEST)
        return f"vLLM serves {unscaled:,} tokens unless --max-model-len asks for more"
    stated = _stated_length(fields)
    for section in sections:
        if _kind(section) == "yarn" and section.has("original_max_position_embeddings"):
            unscaled = section.whole("original_max_position_embeddings", most=_LONGEST)
            factor = section.number("factor", 1.0, least=1.0, most=_LARGEST_FACTOR)
            if int(unscaled * factor) > stated:
                return (
                    f"vLLM 0.32 serves max_position_embeddings ({stated:,}) with YaRN, earlier ones "
                    f"{unscaled:,} x {factor:g}: write {int(unscaled * factor):,} there to have that"
                )
    return ""


def _stated_length(fields: Fields) -> int:
    if fields.has("model_max_length"):  # goes before all others
        return fields.whole("model_max_length", most=_LONGEST)
    lengths = [fields.whole(name, most=_LONGEST) for name in _LENGTHS if fields.has(name)]
    if not lengths:
        fields.missing("max_position_embeddings")
    return min(lengths)


def _factor(fields: Fields) -> float:
    # Gemma 3's files state the scaled length, whatever the kind.
    if "gemma3" in fields.text("model_type"):
        return 1.0
    factor = 1.0
    for section in _scaling_sections(fields):
        if _kind(section) not in _SCALED_ALREADY and "factor" in section.values:
            factor = section.number("factor", 1.0, least=1.0, most=_LARGEST_FACTOR)
    return factor


def _scaling_sections(fields: Fields) -> list[Fields]:
    """What is said about scaling of RoPE: one section, or one for each type of layer."""
    for name in ("rope_scaling", "rope_parameters"):
        said = fields.table(name)
        if said is None or not said.values:
            continue
        by_layer_type = [said.table(key) for key, value in said.values.items() if _is_table(value)]
        whole = len(by_layer_type) < len(said.values)
        return [said] if whole else [section for section in by_layer_type if section]
    return []


def _is_table(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _kind(section: Fields) -> str:
    return section.text("rope_type", section.text("type", "default"))
