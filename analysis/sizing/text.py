"""What `kvtwin size` says, for people at a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from ..definitions import UNCALIBRATED
from ..table import WIDTH_COLUMNS, plain_console, plain_table, say

GIB = 2**30
Facts = Mapping[str, Any]


def print_answer(facts: Facts) -> None:
    """Terms, pool, answers, the engine's own sentences, what would change; the verdict last."""
    console = plain_console()
    for line in _header(facts):
        say(console, line)
    say(console)
    # A pipe is as wide as anything, and where a term is from is a long sentence.
    console.print(_terms(facts), width=min(console.width, WIDTH_COLUMNS))
    say(console)
    for line in [*_pool(facts), *_answers(facts)]:
        say(console, line)
    if facts["engine_says"]:
        say(console)
        say(console, f"{facts['accounting'].partition('-')[0]} would print:", "bold")
        for line in facts["engine_says"]:
            say(console, f"  {line}")
    if facts["log"] is not None:
        say(console)
        for line in _log(facts["log"]):
            say(console, line)
    say(console)
    console.print(_levers(facts))
    for note in facts["notes"]:
        say(console, f"Note: {note}", "dim")
    say(console, verdict(facts), "bold")


def verdict(facts: Facts) -> str:
    """One sentence: does it fit, and what does it hold."""
    setting = facts["setting"]
    what = f"{facts['model']} on {_gpus(facts)} ({facts['accounting']})"
    log = facts["log"]
    contradiction = ""
    if log is not None and log["first_disagreement"] is not None:
        contradiction = f"; the log contradicts itself: {log['first_disagreement']}"
    if not facts["starts"]:
        return f"Does not fit: {what}: {facts['problem']}; {_remedy(facts)}{contradiction}."
    if not facts["works"]:
        return (
            f"Starts, but serves no request of max_model_len ({setting['max_model_len']:,}): {what}: the "
            f"longest has {facts['longest_allowed']:,} tokens; {_remedy(facts)}{contradiction}."
        )
    fits = (
        f"Fits: {what} holds {_replicas(facts, facts['pool']['num_tokens']):,} KV tokens, "
        f"{_replicas(facts, facts['concurrency']):,.2f} requests of {setting['max_model_len']:,}"
    )
    mix, limit = facts["lengths"], _replicas(facts, setting["max_num_seqs"])
    if mix is not None and mix["num_running"] > limit:
        fits += (
            f"; there is memory for {_running(mix)} of {mix['name']} at a time, "
            f"max_num_seqs stops at {limit:,}"
        )
    elif mix is not None:
        fits += f", or about {_running(mix)} of {mix['name']} at a time"
    return f"{fits}{contradiction}."


def _running(mix: Facts) -> str:
    """A mean, in the form in which every sentence has it."""
    return f"{mix['num_running']:,.1f}"


def _remedy(facts: Facts) -> str:
    changes = facts["changes_that_work"]
    if not changes:
        return "no single change of a setting helps: use a larger --gpu or a smaller model"
    return "one of these would work: " + "; ".join(changes)


def _header(facts: Facts) -> Iterator[str]:
    setting = facts["setting"]
    yield f"{facts['model']} on {_gpus(facts)}: max_model_len {setting['max_model_len']:,}"
    yield f"Accounting {facts['accounting']}: {facts['accounting_summary']}"
    yield (
        f"{setting['utilization_flag']} {setting['memory_utilization']:g} "
        f"({setting['utilization_meaning']}), max_num_seqs {setting['max_num_seqs']:,}, "
        f"max_num_batched_tokens {setting['max_num_batched_tokens']:,}, "
        f"KV type {setting['kv_cache_dtype']}"
    )


def _gpus(facts: Facts) -> str:
    setting = facts["setting"]
    if setting["num_gpus"] == 1:
        return str(facts["gpu"])
    names = {"tensor": "tensor", "pipeline": "pipeline", "data": "data"}
    split = [
        f"{words} {setting[f'{key}_parallel_size']}"
        for key, words in names.items()
        if setting[f"{key}_parallel_size"] > 1
    ]
    return f"{setting['num_gpus']} x {facts['gpu']} ({', '.join(split)} parallel)"


def _replicas(facts: Facts, number: Any) -> Any:
    return number * facts["setting"]["data_parallel_size"]


def _terms(facts: Facts) -> Table:
    stage = facts["pool"]["stage"]
    of_stage = f" (pipeline stage {stage}, which binds)" if _has_stages(facts) else ""
    table = plain_table(f"Where the memory of a GPU goes{of_stage}", "term")
    table.add_column("MiB", justify="right", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    table.add_column("from", overflow="fold")
    for term in facts["terms"]:
        table.add_row(
            term["name"].replace("_", " "),
            f"{term['mib']:,.1f}",
            f"{term['mib'] / 1024:,.2f}",
            term["source"],
            term["detail"],
        )
    left = facts["available_bytes"]
    table.add_row("= for KV", f"{left / 2**20:,.1f}", f"{left / GIB:,.2f}", "sum", "")
    return table


def _has_stages(facts: Facts) -> bool:
    return bool(facts["setting"]["pipeline_parallel_size"] > 1)


def _pool(facts: Facts) -> Iterator[str]:
    kv, pool, setting = facts["kv"], facts["pool"], facts["setting"]
    per_gpu = " per GPU" if setting["num_gpus"] > 1 else ""
    growing, stored = kv["bytes_per_token"], kv["bytes_per_token_all_layers"]
    all_layers = f" ({stored:,} B while windows fill)" if stored != growing else ""
    fixed = kv["fixed_bytes_per_request"]
    beside = f", and holds {fixed / 2**20:,.2f} MiB however long it is" if fixed else ""
    yield f"A request takes {growing:,} B{per_gpu} for each token{all_layers}{beside}"
    reserved, plural = pool["num_reserved_blocks"], "" if pool["block_size"] == 1 else "s"
    kept = f" ({reserved} of them never given to a request: the null block)" if reserved else ""
    yield (
        f"Pool: {pool['num_blocks']:,} blocks of {pool['block_size']} token{plural}{kept}, "
        f"{pool['block_bytes']:,} B a block, {pool['pool_bytes'] / GIB:.2f} GiB{per_gpu}"
    )
    derived = f" (derived: {pool['derived']})" if pool["derived"] else ""
    each = " in each replica" if setting["data_parallel_size"] > 1 else ""
    yield f"KV-cache size: {pool['num_tokens']:,} tokens{each}{derived}"
    yield (
        f"Concurrency: {facts['concurrency']:.2f} requests of max_model_len "
        f"({setting['max_model_len']:,} tokens){each}"
    )
    longest = facts["longest_request"]
    limit = "no limit" if longest is None else f"{longest:,} tokens"
    yield (
        f"Longest request that fits: {facts['longest_allowed']:,} tokens (memory alone: {limit}; "
        "max_model_len caps it)"
    )


def _answers(facts: Facts) -> Iterator[str]:
    mix, request = facts["lengths"], facts["request"]
    prefix, session = facts["shared_prefix"], facts["session"]
    if mix is not None:
        yield (
            f"Lengths {mix['name']}: {mix['num_requests']:,} requests, {mix['mean_prompt_tokens']:,.0f} prompt and "
            f"{mix['mean_output_tokens']:,.0f} output tokens on average, {mix['num_clipped']:,} clipped, "
            f"{mix['num_rejected']:,} rejected, {mix['num_too_long']:,} too long for the pool"
        )
        yield (
            f"  {_running(mix)} run at a time if memory is taken as it is needed, "
            f"{mix['num_running_reserved']:,.1f} if each takes at its start what it holds at its end; "
            f"{mix['mean_resident_tokens']:,.0f} tokens each, mean over decode steps"
        )
    if request is not None:
        judged = "can be served" if request["servable"] else f"cannot: {request['reason']}"
        yield (
            f"Request of {request['num_prompt_tokens']:,} prompt tokens and at most {request['max_tokens']:,} more: "
            f"{judged}; it ends with {request['planned_end']:,} committed tokens, {request['num_bytes'] / GIB:.3f} GiB"
        )
    if prefix is not None:
        at = ", ".join(
            f"{tokens:,} with blocks of {size}" for size, tokens in prefix["by_block_size"].items()
        )
        yield (
            f"Shared prefix of {prefix['shared_prefix_tokens']:,} tokens: reusable, in whole blocks: {at}"
        )
    if session is not None:
        stamp = "" if session["calibrated"] else " (roofline, UNCALIBRATED)"
        yield (
            f"Session of {session['session_tokens']:,} tokens, {session['kv_bytes'] / GIB:.2f} GiB per GPU: reload "
            f"{session['reload_s']:.2f} s at {session['link_bytes_per_s'] / 1e9:g} GB/s, recompute "
            f"{session['recompute_s']:.2f} s{stamp}"
        )


def _log(log: Facts) -> Iterator[str]:
    version = f" {log['version']}" if log["version"] else ""
    yield (
        f"The log of {log['engine']}{version}: {log['num_agree']} checks agree, {log['num_disagree']} disagree, "
        f"{log['num_not_applicable']} not applicable"
    )
    if log["is_changed"]:
        yield "  (of the deployment that the log is of; flags above change it)"
    for row in log["compared"]:
        printed, predicted = (
            _figure(row["figure"], row[side]) for side in ("printed", "predicted")
        )
        yield (
            f"  {row['figure'].replace('_', ' ')}: line {row['line_number']} says {printed}, "
            f"predicted {predicted}{_percent(row['difference'])}"
        )
    for check in log["checks"]:
        yield f"  {check['text']}"
    for note in log["notes"]:
        yield f"  {note}"


def _percent(difference: float | None) -> str:
    return "" if difference is None else f" ({100 * difference:+.2f} %)"


def _figure(name: str, value: float) -> str:
    if name == "available_kv":
        return f"{value / GIB:.2f} GiB"
    return f"{value:,.2f}" if name == "max_concurrency" else f"{value:,.0f}"


def _levers(facts: Facts) -> Table:
    stamp = f", {UNCALIBRATED}" if any(lever["estimated"] for lever in facts["levers"]) else ""
    table = plain_table(f"What would change (all GPUs together{stamp})", "change")
    of_length = f"requests\nof {facts['setting']['max_model_len']:,}"
    headings = ("GPUs", "KV GiB\na GPU", "KV tokens", "vs.\nnow", of_length, "longest\nrequest")
    table.columns[0].no_wrap = False  # a flag and its value may stand below each other
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    now = facts["levers"][0]["num_tokens"]
    for lever in facts["levers"]:
        change = f"{lever['num_tokens'] / now:.2f} x" if now else "-"
        table.add_row(
            lever["change"],
            f"{lever['num_gpus']}",
            f"{lever['pool_bytes'] / GIB:.2f}",
            f"{lever['num_tokens']:,}",
            change,
            f"{lever['concurrency']:,.2f}",
            f"{lever['longest_allowed']:,}",
        )
    return table
