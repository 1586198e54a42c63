"""vLLM 0.32 without its hybrid KV cache manager (`--disable-hybrid-kv-cache-manager`)."""

from typing import ClassVar

from .vllm import Vllm


class VllmNoHybrid(Vllm):
    """Layers with a window store every token, in one group with the others.

    So it is, too, with some KV connectors and on platforms without that manager. A model all of
    whose layers have the same window keeps it, and one with recurrent layers is refused
    (`kv_cache_utils.py`: unify_hybrid_kv_cache_specs).
    """

    name: ClassVar[str] = "vllm-no-hybrid"
    summary: ClassVar[str] = "vLLM 0.32 without hybrid KV cache manager: windows stored in full"
    hybrid: ClassVar[bool] = False
