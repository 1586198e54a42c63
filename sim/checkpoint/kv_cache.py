"""The type in which a checkpoint asks for its KV cache, from its `quantization_config`."""

from typing import Any

from .fields import Fields
from .shipped import quantization_method


def shipped_kv_cache_dtype(quantization: Fields, *, latent: bool) -> tuple[str, str]:
    """(`fp8`, or empty for the model's own type; what its reader must know).

    What vLLM 0.32 stores with --kv-cache-dtype auto. ModelOpt: 8-bit floats by `kv_cache_scheme` that
    are not dynamic, or a `kv_cache_quant_algo` of FP8 (`utils/torch_utils.py`:
    get_kv_cache_quant_algo_string). compressed-tensors: any `kv_cache_scheme`, which must be of 8-bit
    floats; a latent cache does not heed it (`layers/attention/attention.py`, `mla_attention.py`).
    """
    method = quantization_method(quantization)
    if method.startswith("modelopt"):
        return _modelopt(quantization)
    scheme = quantization.get("kv_cache_scheme")
    if method != "compressed-tensors" or scheme is None:
        return "", ""
    if not _is_fp8(scheme):
        return "", "its kv_cache_scheme is not of 8-bit floats, which vLLM 0.32 refuses"
    return ("", "vLLM heeds no kv_cache_scheme for a latent cache") if latent else ("fp8", "")


def _modelopt(quantization: Fields) -> tuple[str, str]:
    inner = quantization.table("quantization") or quantization
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for fields in (inner, quantization):
            asked = fields.get(name)
            if not asked:
                continue
            scheme_is_fp8 = _is_fp8(asked) and asked.get("dynamic") is False
            if scheme_is_fp8 or _lower(asked) == "fp8":
                return "fp8", ""
            return (
                "",
                f"the KV type that its {name} asks for is not known here: 16 bits are counted",
            )
    return "", ""


def _is_fp8(scheme: Any) -> bool:
    if not isinstance(scheme, dict):
        return False
    return scheme.get("num_bits") == 8 and scheme.get("type") == "float"


def _lower(asked: Any) -> str:
    return asked.lower() if isinstance(asked, str) else ""
