"""Miniature start-up logs of every generation, each with figures that agree with each other.

Figures are of published logs where they are more than round numbers.
"""

from pathlib import Path

from kvtwin.sim.sizing.engine_log import LogFacts, StatedText, read_engine_log


def read_log(folder: Path, log: str | bytes) -> LogFacts:
    """Write a log and read it."""
    path = folder / "engine.log"
    path.write_bytes(log.encode() if isinstance(log, str) else log)
    return read_engine_log(path)


def stated(facts: LogFacts) -> dict[str, object]:
    """Every fact that the log states: ints where whole, else floats, and texts."""
    known: dict[str, object] = {}
    for name in LogFacts.__dataclass_fields__:
        fact = getattr(facts, name)
        if isinstance(fact, StatedText):
            known[name] = fact.value
        elif hasattr(fact, "half_width"):
            whole = fact.value.denominator == 1
            known[name] = int(fact.value) if whole else float(fact.value)
    return known


VLLM_0_6_4 = """\
INFO 11-21 09:00:01 llm_engine.py:249] Initializing an LLM engine (v0.6.4.post1) with config: \
model='org/small', speculative_config=None, dtype=torch.bfloat16, max_seq_len=20000, \
tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, \
kv_cache_dtype=auto, seed=0)
INFO 11-21 09:00:05 model_runner.py:1077] Loading model weights took 14.9888 GB
INFO 11-21 09:00:07 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB \
initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB memory_usage_post_profile=15.35Gib \
non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90
INFO 11-21 09:00:08 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048
INFO 11-21 09:00:08 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x
"""
VLLM_0_7 = """\
INFO 01-30 03:18:12 model_runner.py:1115] Loading model weights took 14.9888 GB
INFO 01-30 03:18:14 worker.py:267] Memory profiling takes 1.73 seconds
INFO 01-30 03:18:14 worker.py:267] the current vLLM instance can use total_gpu_memory (79.25GiB) x \
gpu_memory_utilization (0.90) = 71.33GiB
INFO 01-30 03:18:14 worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.16GiB; \
PyTorch activation peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is \
54.92GiB.
INFO 01-30 03:18:14 executor_base.py:110] # CUDA blocks: 28119, # CPU blocks: 2048
INFO 01-30 03:18:14 executor_base.py:115] Maximum concurrency for 131072 tokens per request: 3.43x
INFO 01-30 03:18:30 model_runner.py:1562] Graph capturing finished in 16 secs, took 0.27 GiB
"""
VLLM_0_8 = """\
INFO 04-28 10:00:00 [api_server.py:1043] vLLM API server version 0.8.4
INFO 04-28 10:00:00 [api_server.py:1044] args: Namespace(host=None, model='org/small', \
max_model_len=None, gpu_memory_utilization=0.95, max_num_seqs=128, block_size=16, enforce_eager=True)
INFO 04-28 10:00:01 [config.py:2040] Chunked prefill is enabled with max_num_batched_tokens=2048.
INFO 04-28 10:00:02 [core.py:58] Initializing a V1 LLM engine (v0.8.4) with config: \
model='org/small', speculative_config=SpeculativeConfig(method='eagle', model='org/draft'), \
dtype=torch.bfloat16, max_seq_len=40960, tensor_parallel_size=1, pipeline_parallel_size=1, \
quantization=fp8, enforce_eager=True, kv_cache_dtype=fp8_e4m3,  device_config=cuda
INFO 04-28 10:00:20 [gpu_model_runner.py:1276] Model loading took 14.9889 GiB and 3.2 seconds
INFO 04-28 10:00:30 [gpu_worker.py:232] Available KV cache memory: 18.69 GiB
INFO 04-28 10:00:30 [kv_cache_utils.py:634] GPU KV cache size: 136,080 tokens
INFO 04-28 10:00:30 [kv_cache_utils.py:637] Maximum concurrency for 40,960 tokens per request: 3.32x
INFO 04-28 10:00:50 [gpu_model_runner.py:1626] Graph capturing finished in 20 secs, took 0.60 GiB
"""
VLLM_0_32 = """\
(APIServer pid=1) INFO 09-18 22:23:00 [api_server.py:60] non-default args: {'model_tag': 'org/x', \
'model': 'org/small', 'max_model_len': 262144, 'gpu_memory_utilization': 0.97, 'max_num_seqs': 1}
(EngineCore pid=42) INFO 09-18 22:23:41 [gpu_model_runner.py:5150] Model loading took 81.2 GiB \
memory and 30.500000 seconds
(EngineCore pid=42) INFO 09-18 22:23:41 [gpu_model_runner.py:6475] Estimated CUDA graph memory: \
0.33 GiB total
(EngineCore pid=42) INFO 09-18 22:23:41 [gpu_worker.py:760] Available KV cache memory: 8.64 GiB
(EngineCore pid=42) INFO 09-18 22:23:42 [kv_cache_utils.py:2327] GPU KV cache size: 315,039 \
tokens, Maximum concurrency for 262,144 tokens per request: 1.20x
(EngineCore pid=42) INFO 09-18 22:23:43 [gpu_worker.py:1034] Free memory on device (94.41/94.97 GiB) \
on startup. Desired GPU memory utilization is (0.97, 92.12 GiB). Actual usage is 81.7 GiB for \
consumed memory (weights + non-torch), 1.78 GiB for peak activation, and 0.28 GiB for CUDAGraph \
memory. Replace gpu_memory_utilization config with `--kv-cache-memory=8820325233` (8.21 GiB) to fit \
into requested memory, or `--kv-cache-memory=11273977344` (10.5 GiB) to fully utilize gpu memory. \
Current kv cache memory in use is 8.64 GiB.
"""
VLLM_REFUSES = """\
INFO 07-11 06:23:04 [gpu_worker.py:232] Available KV cache memory: 5.59 GiB
ERROR 07-11 06:23:05 [core.py:390] ValueError: To serve at least one request with the models's max \
seq len (221000), (10.12 GiB KV cache is needed, which is larger than the available KV cache memory \
(5.59 GiB). Based on the available memory, the estimated maximum model length is 122080. Try \
"""
SGLANG = """\
[2025-03-14 09:20:00] server_args=ServerArgs(model_path='org/small', tokenizer_path='org/small', \
dtype='auto', kv_cache_dtype='auto', quantization=None, context_length=None, \
mem_fraction_static=0.85, tp_size=4, dp_size=1, page_size=1, disable_cuda_graph=False)
[2025-03-14 09:20:01 TP0] Load weight begin. avail mem=21.63 GB
[2025-03-14 09:20:01 TP1] Load weight begin. avail mem=21.66 GB
[2025-03-14 09:20:11 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, \
avail mem=6.09 GB, mem usage=15.54 GB.
[2025-03-14 09:20:11 TP1] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, \
avail mem=6.12 GB, mem usage=15.54 GB.
[2025-03-14 09:20:12 TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB
[2025-03-14 09:20:12 TP0] Memory pool end. avail mem=2.09 GB
[2025-03-14 09:20:20 TP0] Capture cuda graph end. Time elapsed: 7.23 s. avail mem=0.53 GB. \
mem usage=0.93 GB.
[2025-03-14 09:20:21 TP0] max_total_num_tokens=46611, chunked_prefill_size=2048, \
max_prefill_tokens=16384, max_running_requests=2049, context_len=131072
"""
SGLANG_0_5 = """\
[2026-09-01 10:00:00] server_args={'model_path': 'org/moe', 'mem_fraction_static': 0.88, 'tp_size': 1}
[2026-09-01 10:01:00] Load weight end. elapsed=618.04 s, type=SomeForCausalLM, quant=fp8, \
avail mem=209.98 GB, mem usage=73.58 GB.
[2026-09-01 10:01:05] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 2454421, KV size: 160.63 GB
[2026-09-01 10:02:05] Capture decode CUDA graph end. bs=[1, 2, 4], elapsed=9.30 s, mem usage=1.25 GB, \
avail mem=44.00 GB.
"""
TRTLLM_CPP = """\
[TensorRT-LLM] TensorRT-LLM version: 0.17.0
[TensorRT-LLM][INFO] Loaded engine size: 12855 MiB
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, \
available: 70.48 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4060
[TensorRT-LLM][INFO] Number of blocks in KV cache secondary pool: 0, onboard blocks to primary memory
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 63.44 GiB for max tokens in paged KV cache (259840).
[TRT-LLM] [I] max_seq_len=2048, max_num_requests=256, max_num_tokens=8192
"""
TRTLLM_PYTORCH = """\
[12/20/2025-04:21:10] [TRT-LLM] [W] Both free_gpu_memory_fraction and max_tokens are set (to \
0.8999999761581421 and 8224, respectively). The smaller value will be used.
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory \
usage profiling: 13.02 GiB
[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (outside torch) in \
memory usage profiling: 49.78 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in \
memory usage profiling: 0.85 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory \
usage profiling: 49.28 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): \
113.65 GiB, available KV cache memory when calculating max tokens: 5.95 GiB, fraction is set \
0.8999999761581421, kv size is 73728. device total memory 119.70 GiB, , tmp kv_mem 0.56 GiB
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).
"""
