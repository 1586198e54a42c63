"""What `kvtwin trace synth` is asked for."""

from kvtwin.traces import WORKLOADS, Mix, UserError


def mix_of(
    prompt: str | None,
    output: str | None,
    arrivals: str | None,
    rate: float | None,
    system_prompts: str | None,
    turns: float,
    think_s: float,
    max_model_len: int | None,
) -> Mix:
    """The mix that the flags describe. Raises UserError for flags that cannot be understood."""
    if prompt is None or output is None:
        raise UserError("--prompt and --output belong together; give both")
    numbers = (0, 0) if system_prompts is None else _two_numbers(system_prompts)
    return Mix(
        prompt,
        output,
        arrivals=arrivals or "poisson",
        rate=rate,
        num_system_prompts=numbers[0],
        system_prompt_tokens=numbers[1],
        mean_turns=turns,
        mean_think_s=think_s,
        **({} if max_model_len is None else {"max_model_len": max_model_len}),
    )


def asked_lines(workload: str) -> list[str]:
    """What a named workload was asked to be, and which of it is a fit."""
    lines = []
    for part, lengths in (
        ("prompt", WORKLOADS[workload].prompt),
        ("output", WORKLOADS[workload].output),
    ):
        fitted = "" if not lengths.cv_fitted else " (fitted)"
        lines.append(
            f"  asked of {part}s: mean {lengths.mean:g} tokens, CV {lengths.cv:g}{fitted},"
            " before clipping"
        )
    return lines


def _two_numbers(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise UserError(f"--system-prompts is {text!r}; write N,TOKENS, like 8,1024")
    return int(parts[0]), int(parts[1])
