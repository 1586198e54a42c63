"""Names of the files in a run directory and in the output of a comparison."""

RUN_JSON = "run.json"
META_JSON = "meta.json"
REQUESTS = "requests.parquet"
TIMELINE = "timeline.parquet"
SNAPSHOTS = "snapshots.parquet"
DECISIONS = "decisions.parquet"
COMPARISON_JSON = "comparison.json"
REPORT_HTML = "report.html"
PARTS_SVG = "parts.svg"
PARTS_OVER_TIME_SVG = "parts-over-time.svg"
MEMORY_MAP_PNG = "memory-map.png"
CACHE_OR_NOT_SVG = "cache-or-not.svg"
VALIDATION_JSON = "validation.json"
PREDICTION_JSON = "prediction.json"
STEPS = "steps.parquet"
MEMORY_OVER_TIME_SVG = "memory-over-time.svg"
MEMORY_MAPS_PNG = "memory-maps.png"
STEP_TIMES_SVG = "step-times.svg"
# The two one-request runs behind the figure "with and without a KV cache".
CACHE_OR_NOT_DIR = "cache-or-not"
CACHE_OR_NOT_POLICIES = ("no-cache", "paged")

# A directory is recognised as kvtwin's own by one of these.
MARKERS = frozenset({RUN_JSON, COMPARISON_JSON, VALIDATION_JSON})
OWN_FILES = MARKERS | {
    META_JSON,
    REQUESTS,
    TIMELINE,
    SNAPSHOTS,
    DECISIONS,
    REPORT_HTML,
    PARTS_SVG,
    PARTS_OVER_TIME_SVG,
    MEMORY_MAP_PNG,
    CACHE_OR_NOT_SVG,
    PREDICTION_JSON,
    STEPS,
    MEMORY_OVER_TIME_SVG,
    MEMORY_MAPS_PNG,
    STEP_TIMES_SVG,
}


def run_dir_name(policy: str) -> str:
    """Name of a policy's run directory; `package.module:Class` and paths become one plain name."""
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in policy)
