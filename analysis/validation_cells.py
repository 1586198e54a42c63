"""A validation in words and cells: the verdict, the facts, and what each table shows."""

from collections.abc import Mapping
from typing import Any

from .definitions import UNCALIBRATED

# Of predictions, in the order in which the page shows them.
KINDS = {
    "decisions": "Decisions",
    "contents": "Contents of the pool",
    "parts": "Parts of the pool",
    "outputs": "Attention outputs",
    "time": "Time",
}


def verdict(validation: Mapping[str, Any]) -> str:
    """One sentence: did the predictions hold, and on what."""
    policies = validation["policies"]
    judged = [p for policy in policies for p in policy["predictions"] if p["passed"] is not None]
    failed = [p for p in judged if not p["passed"]]
    num_findings = sum(len(policy["findings"]) for policy in policies)
    backends = ", ".join(sorted({policy["backend"] for policy in policies}))
    where = f"executed with {backends} on {validation['device']}"
    if validation["not_executed"]:
        where += f"; nothing to execute under {', '.join(validation['not_executed'])}"
    num_policies = f"{len(policies)} {'policy' if len(policies) == 1 else 'policies'}"
    if validation["passed"]:
        return f"All {len(judged):,} judged predictions of {num_policies} hold, {where}."
    causes = []
    if failed:
        first = failed[0]
        causes.append(
            f"{len(failed):,} of {len(judged):,} judged predictions failed, "
            f"first {first['policy']}: {first['name']}"
        )
    if num_findings:
        causes.append(f"the audit has findings ({num_findings:,} listed)")
    return f"FAILED: {'; '.join(causes) or 'nothing was validated'}; {where}."


def facts(validation: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and value of what was validated with what."""
    shape, cost, trace = validation["shape"], validation["cost"], validation["trace"]
    sha256 = validation["prediction_sha256"]
    return [
        ("Trace", f"{trace['name']}, {trace['num_requests']:,} requests"),
        (
            "Model",
            f"{shape['model']}: {shape['num_layers']} layers, {shape['num_heads']} query and "
            f"{shape['num_kv_heads']} KV heads of {shape['head_dim']}, {shape['dtype']}",
        ),
        ("Blocks", f"{shape['block_size']} slots"),
        ("Device", validation["device"]),
        ("Step times from", cost["name"] + ("" if cost["calibrated"] else f" ({UNCALIBRATED})")),
        ("Versions", ", ".join(f"{k} {v}" for k, v in validation["versions"].items())),
        ("Prediction", "not written" if sha256 is None else f"sha256 {sha256[:16]}"),
    ]


def outcome(prediction: Mapping[str, Any]) -> str:
    """The last cell of a prediction's row."""
    return {True: "pass", False: "FAIL", None: "not judged"}[prediction["passed"]]


def number_cell(value: float | None) -> str:
    """A number of any magnitude in four places, whole ones in full, or a dash."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"


def audit_rows(validation: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Name of what was counted, and each policy's count."""
    policies = validation["policies"]
    names = dict.fromkeys(name for policy in policies for name in policy["audit"])
    return [
        (
            name.removeprefix("num_").replace("_", " "),
            [f"{p['audit'][name]:,}" if name in p["audit"] else "-" for p in policies],
        )
        for name in names
    ]
