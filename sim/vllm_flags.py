"""What engines' flags that are not settings of a run stand for here, or why they stand for nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from .names import listed


@dataclass(frozen=True)
class Elsewhere:
    """What a flag stands for, to follow its name in brackets; `leave_out`: so that it is to be left out."""

    why: str
    leave_out: bool = False


# By what is to be done about them. Names without dashes, as on a command line or in a file.
_ANSWERING = "how an engine answers its clients, which no pool and no step depends on"
_LOADING = "what an engine loads, and how; here the model's shape is all that counts"
_COMPUTING = "how an engine computes, which step times here do not tell apart"
_MISSING = "not modelled: its memory and its time are missing from the result"
_OF_ONE_REPLICA = (
    "a run is of one replica without stages; kvtwin size knows pipeline and data parallelism"
)
_CONFIGURED = "a change of the model's config.json; kvtwin size reads such a file: --model PATH"
_TERM = (
    "kvtwin size takes it; give a run the pool that it leaves, with --num-gpu-blocks-override or "
    "--kv-cache-memory-bytes"
)
_FRACTION = "another engine's fraction; runs count as vLLM does: --gpu-memory-utilization"
_NAMES = {
    _ANSWERING: "host port uds api-key api-server-count served-model-name root-path uvicorn-log-level "
    "ssl-keyfile ssl-certfile ssl-ca-certs allowed-origins allowed-methods allowed-headers allow-credentials "
    "middleware chat-template chat-template-content-format response-role tool-call-parser tool-parser-plugin "
    "enable-auto-tool-choice reasoning-parser enable-reasoning generation-config override-generation-config "
    "max-logprobs logprobs-mode return-tokens-as-token-ids disable-log-stats disable-log-requests "
    "enable-log-requests max-log-len disable-fastapi-docs disable-uvicorn-access-log enable-request-id-headers "
    "enable-prompt-tokens-details enable-server-load-tracking otlp-traces-endpoint collect-detailed-traces "
    "guided-decoding-backend structured-outputs-config stream-interval",
    _LOADING: "trust-remote-code load-format download-dir revision code-revision tokenizer-mode tokenizer-revision "
    "skip-tokenizer-init config-format hf-token hf-config-path model-impl model-loader-extra-config "
    "ignore-patterns use-tqdm-on-load safetensors-load-strategy max-parallel-loading-workers runner task convert",
    _COMPUTING: "attention-backend attention-config compilation-config cc O0 O1 O2 O3 optimization-level "
    "cudagraph-capture-sizes cuda-graph-sizes max-cudagraph-capture-size max-seq-len-to-capture "
    "distributed-executor-backend disable-custom-all-reduce all2all-backend use-v2-block-manager "
    "disable-cascade-attn prefix-caching-hash-algo kernel-config moe-backend",
    _MISSING: "speculative-config speculative-model num-speculative-tokens enable-lora lora-modules max-loras "
    "max-lora-rank max-cpu-loras lora-dtype cpu-offload-gb kv-offloading-size kv-offloading-backend "
    "kv-transfer-config limit-mm-per-prompt mm-processor-kwargs mm-processor-cache-gb enable-mm-embeds "
    "decode-context-parallel-size dcp prefill-context-parallel-size pcp enable-eplb num-redundant-experts "
    "enable-dbo mamba-cache-mode mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size "
    "max-num-partial-prefills max-long-partial-prefills",
    _OF_ONE_REPLICA: "pipeline-parallel-size pp data-parallel-size dp data-parallel-size-local dpl "
    "data-parallel-rank dpn nnodes node-rank",
    _CONFIGURED: "hf-overrides rope-scaling rope-theta disable-sliding-window",
    _TERM: "engine-log gpu-memory-gib weights-gib activation-gib cuda-graph-gib other-gib",
    _FRACTION: "mem-fraction-static kv-cache-free-gpu-memory-fraction",
}
_LEFT_OUT = {_ANSWERING, _LOADING, _COMPUTING, _MISSING}
_SAME_BYTES = Elsewhere("the same bytes as --tensor-parallel-size alone", leave_out=True)
_PREFIX_CACHING = "enable-prefix-caching"
_OF_POLICY = Elsewhere("in runs it is the policy: vllm-v1 has it, vllm-v1-no-caching has not")
_OF_SIZES = Elsewhere(
    "sizes count with prefix caching, vLLM's default; only what recurrent layers keep depends on it",
    leave_out=True,
)
_INSTEAD = {
    "scheduler-reserve-full-isl": Elsewhere("in runs it is --admission full"),
    "no-scheduler-reserve-full-isl": Elsewhere("in runs it is --admission step"),
    "disable-chunked-prefill": Elsewhere("it is --no-enable-chunked-prefill"),
    "max-seq-len": Elsewhere("it is --max-model-len"),
    "num-gpus": Elsewhere("it is --tensor-parallel-size"),
    "dtype": Elsewhere(
        "weights count as they are shipped, or as --quantization says, and KV as --kv-cache-dtype says",
        leave_out=True,
    ),
    "enable-expert-parallel": _SAME_BYTES,
    "ep": _SAME_BYTES,
    "accounting": Elsewhere("runs count as vLLM does; kvtwin size also counts as other engines do"),
    **{
        name: Elsewhere(why, why in _LEFT_OUT)
        for why, names in _NAMES.items()
        for name in names.split()
    },
}


def said_elsewhere(
    name: str, *, caches: bool | None = None, sizes: bool = False
) -> Elsewhere | None:
    """What a flag or key that is no setting here stands for; None if it is not known.

    `name`: with or without dashes in front, in snake or kebab case. `caches`: whether the policies that are asked for
    cache prefixes, None where nothing is known of them, or they differ. `sizes`: of a sizing, which has no policy.
    """
    plain = name.lstrip("-").replace("_", "-")
    positive = plain.removeprefix("no-")
    if positive == _PREFIX_CACHING:
        if sizes:
            return _OF_SIZES
        asked = plain == positive
        if caches is not asked:
            return _OF_POLICY
        return Elsewhere(f"the policy given {'has it' if asked else 'caches none'}", leave_out=True)
    return _INSTEAD.get(plain) or _INSTEAD.get(positive)


def names_refused(found: Mapping[str, Elsewhere]) -> str:
    """The names in `found` with why they are refused, those that share a reason together, and which to leave out."""
    groups: dict[str, list[str]] = {}
    for name, elsewhere in found.items():
        groups.setdefault(elsewhere.why, []).append(name)
    line = ", ".join(listed(names) + (f" ({why})" if why else "") for why, names in groups.items())
    needless = [name for name, elsewhere in found.items() if elsewhere.leave_out]
    if not needless:
        return line
    if len(needless) < len(found):
        return f"{line}; leave out {listed(needless)}"
    return f"{line}; leave {'them' if needless[1:] else 'it'} out"
