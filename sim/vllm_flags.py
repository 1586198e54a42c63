"""What engines' flags that are not settings of a run stand for here, or why they stand for nothing."""

# By what is to be done about them. Names without dashes, as on a command line or in a file.
_ANSWERING = (
    "it says how an engine answers its clients, which no pool and no step depends on; leave it out"
)
_LOADING = (
    "it says what an engine loads, and how; here the model's shape is all that counts; leave it out"
)
_COMPUTING = (
    "it says how an engine computes; step times here do not tell one from another; leave it out"
)
_MISSING = "it is not modelled: its memory and its time would be missing from the result"
_OF_ONE_REPLICA = (
    "a run is of one replica without stages; kvtwin size knows pipeline and data parallelism"
)
_CONFIGURED = (
    "it changes what the model's config.json says; kvtwin size reads such a file: --model PATH"
)
_TERM = (
    "kvtwin size takes it; give a run the pool that it leaves, with --num-gpu-blocks-override or "
    "--kv-cache-memory-bytes"
)
_FRACTION = "it is another engine's fraction; runs count as vLLM does: --gpu-memory-utilization"
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
_INSTEAD = {
    "enable-prefix-caching": "in runs it is the policy vllm-v1, or vllm-v0-prefix-caching",
    "no-enable-prefix-caching": "in runs it is the policy vllm-v1-no-caching, or vllm-v0",
    "scheduler-reserve-full-isl": "in runs it is --admission full",
    "no-scheduler-reserve-full-isl": "in runs it is --admission step",
    "disable-chunked-prefill": "it is --no-enable-chunked-prefill",
    "max-seq-len": "it is --max-model-len",
    "num-gpus": "it is --tensor-parallel-size",
    "dtype": "weights count as they are shipped, KV as --kv-cache-dtype says; leave it out, or see --quantization",
    "enable-expert-parallel": "it takes the same bytes as --tensor-parallel-size alone; leave it out",
    "ep": "it takes the same bytes as --tensor-parallel-size alone; leave it out",
    "accounting": "runs count as vLLM does; kvtwin size also counts as other engines do",
    **{name: why for why, names in _NAMES.items() for name in names.split()},
}


def said_elsewhere(name: str) -> str | None:
    """What to do about a flag or key that is no setting here, to follow its name; None if it is not known.

    `name`: with or without dashes in front, in snake or kebab case.
    """
    plain = name.lstrip("-").replace("_", "-")
    return _INSTEAD.get(plain) or _INSTEAD.get(plain.removeprefix("no-"))
