"""What `kvtwin trace synth` is asked for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtwin.traces import WORKLOADS, UserError

if TYPE_CHECKING:
    from kvtwin.traces import Trace


def _flag(help_text: str, metavar: str, panel: str) -> Any:
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=panel, show_default=False)


def _mix(help_text: str, metavar: str) -> Any:
    return _flag(help_text, metavar, "Requests of your own")


def _agents(help_text: str, metavar: str) -> Any:
    return _flag(help_text, metavar, "Agent sessions")


@dataclass(frozen=True)
class MixFlags:
    """Requests that are described instead of named; None where nothing was said."""

    prompt: Annotated[
        str | None,
        _mix(
            "Message lengths: fixed:N, lognormal:MEAN,CV, zipf:ALPHA,MAX, range:N,RATIO, trace:FILE.",
            "DIST",
        ),
    ] = None
    output: Annotated[str | None, _mix("Output lengths, written likewise.", "DIST")] = None
    arrivals: Annotated[
        str | None,
        _mix(
            "poisson (default), gamma:SHAPE, weibull:SHAPE, on-off:ON,OFF, diurnal:AMPLITUDE,PERIOD "
            "(seconds). --rate is the mean over ON and OFF: during ON it is (ON + OFF) / ON times that.",
            "DIST",
        ),
    ] = None
    system_prompts: Annotated[
        str | None, _mix("So many shared prompts of so many tokens.", "N,TOKENS")
    ] = None
    turns: Annotated[float | None, _mix("Mean turns of a chat (default 1).", "N")] = None
    think: Annotated[float | None, _mix("Mean seconds between turns (default 0).", "S")] = None
    priorities: Annotated[
        int | None, _mix("So many priorities, of whole sessions (default none).", "N")
    ] = None
    samples: Annotated[int | None, _mix("Outputs of every prompt (default 1).", "N")] = None
    max_model_len: Annotated[
        int | None, _mix("Most tokens of a chat or an agent (default 131072).", "N")
    ] = None
    tool_result: Annotated[
        str | None,
        _agents("Lengths of tool results; makes agent sessions, of which --rate counts.", "DIST"),
    ] = None
    calls: Annotated[float | None, _agents("Mean calls of a session (default 10).", "N")] = None
    tool_time: Annotated[float | None, _agents("Mean seconds of a tool (default 1).", "S")] = None
    subagents: Annotated[
        float | None, _agents("Share of tools that are subagents (default 0).", "SHARE")
    ] = None

    @property
    def is_asked_for(self) -> bool:
        return self != MixFlags()

    def generate(self, name: str, rate: float | None, num_requests: int, seed: int) -> "Trace":
        """The requests that are described. Raises UserError for flags that cannot be understood."""
        from kvtwin.traces import AgentMix, Mix, generate, generate_agents

        if self.prompt is None or self.output is None:
            raise UserError("--prompt and --output belong together; give both")
        for_agents = {
            "mean_calls": self.calls,
            "mean_tool_s": self.tool_time,
            "subagent_share": self.subagents,
        }
        for_chats = {
            "mean_turns": self.turns,
            "mean_think_s": self.think,
            "num_priorities": self.priorities,
            "num_samples": self.samples,
        }
        shared = _given(
            {"output": self.output, "arrivals": self.arrivals, "max_model_len": self.max_model_len}
        )
        number, tokens = (0, 0) if self.system_prompts is None else _two(self.system_prompts)
        if self.tool_result is None:
            if _given(for_agents):
                raise UserError("--calls, --tool-time and --subagents need --tool-result")
            mix = Mix(
                self.prompt,
                rate=rate,
                num_system_prompts=number,
                system_prompt_tokens=tokens,
                **shared,
                **_given(for_chats),
            )
            return generate(name, mix, num_requests, seed)
        if _given(for_chats):
            raise UserError(
                "--turns, --think, --priorities and --samples do not go with --tool-result"
            )
        if rate is None:
            raise UserError("--tool-result needs --rate, of sessions, or inf")
        if number > 1:
            raise UserError(
                "agent sessions share one system prompt; write --system-prompts 1,TOKENS"
            )
        agents = AgentMix(
            self.prompt,
            tool_result=self.tool_result,
            rate=rate,
            system_prompt_tokens=tokens,
            **shared,
            **_given(for_agents),
        )
        return generate_agents(name, agents, num_requests, seed)


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


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _two(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise UserError(f"--system-prompts is {text!r}; write N,TOKENS, like 8,1024")
    return int(parts[0]), int(parts[1])
