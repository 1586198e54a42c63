"""OpenTelemetry spans of LLM calls, written short."""

import json
from typing import Any

Json = dict[str, Any]


def messages(*texts: str) -> str:
    return json.dumps([{"role": "user", "content": text} for text in texts])


def span(start: str, end: str, **attributes: Any) -> Json:
    given: Json = {"gen_ai.operation.name": "chat"}
    given |= {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
    stamps = {"start_time": f"2026-02-25T10:00:{start}", "end_time": f"2026-02-25T10:00:{end}"}
    return {"trace_id": "t", "span_id": start, "attributes": given} | stamps


def used(start: str, end: str, prompt: Any, output: Any, **more: Any) -> Json:
    return span(start, end, usage__input_tokens=prompt, usage__output_tokens=output, **more)
