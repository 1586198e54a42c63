"""How long a step lasts: integer coefficients, so that it lasts equally long everywhere."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from typing import Any, NoReturn

from kvtwin.traces import UserError

from .catalog import GpuSpec, find_gpu
from .config import RunConfig, read_user_file
from .fit_record import FitRecord
from .model import ModelSpec
from .names import did_you_mean
from .roofline import roofline_terms

SCHEMA_VERSION = 1
SHIFT = 20  # coefficients are in units of 2**-20 ns
_HALF = 1 << (SHIFT - 1)
_LARGEST = 1 << 60  # about 1,000 s for one unit of anything

# What a step is measured by. prefill_pairs: query-key pairs of its prefill chunks.
# prefill_context_slots: KV slots the chunks read. decode_context_slots: KV slots the decodes read,
# the new token's included. moved_slots: slots that the allocator copied.
TOTALS = (
    "num_prefill_tokens",
    "prefill_pairs",
    "prefill_context_slots",
    "num_decode_tokens",
    "decode_context_slots",
    "moved_slots",
)


@dataclass(frozen=True)
class CostTerm:
    """One resource's time in units of 2**-20 ns: constant + dot(coefficients, `TOTALS`)."""

    name: str
    constant: int
    coefficients: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.coefficients) == len(TOTALS), (self.name, len(self.coefficients))
        assert min(self.constant, *self.coefficients) >= 0, (
            self.name,
            self.constant,
            self.coefficients,
        )


@dataclass(frozen=True)
class CostModel:
    """Duration of a step: the longest of its terms.

    `calibrated`: fitted to measured steps. `notes`: sentences a reader of the result must see.
    `fit`: what it was fitted to, if kvtwin did.
    """

    name: str
    calibrated: bool
    terms: tuple[CostTerm, ...]
    notes: tuple[str, ...] = ()
    fit: FitRecord | None = None

    def __post_init__(self) -> None:
        assert self.terms, self.name

    def step_ns(self, totals: tuple[int, ...]) -> int:
        """Nanoseconds of a step with these `TOTALS`, at least 1. Rounded once, halves up."""
        assert len(totals) == len(TOTALS), (len(totals), len(TOTALS))
        longest: int = max(
            sum(map(mul, term.coefficients, totals), term.constant) for term in self.terms
        )
        return max(1, (longest + _HALF) >> SHIFT)

    def to_dict(self) -> dict[str, Any]:
        """The content of a coefficients file."""
        terms = [
            {
                "name": term.name,
                "constant": term.constant,
                "coefficients": dict(zip(TOTALS, term.coefficients, strict=True)),
            }
            for term in self.terms
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "calibrated": self.calibrated,
            "unit": f"2**-{SHIFT} ns",
            "terms": terms,
            "notes": list(self.notes),
            **({} if self.fit is None else {"fit": self.fit.to_dict()}),
        }

    def to_json(self) -> str:
        """The text of a coefficients file."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def save(self, path: Path) -> None:
        """Write a coefficients file (JSON)."""
        path.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def from_file(cls, path: Path) -> "CostModel":
        """Read a coefficients file: TOML if its name ends in .toml, else JSON.

        Raises UserError naming file and field.
        """
        content = read_user_file(path, "--cost")
        try:
            text = content.decode()
            raw = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        except (ValueError, RecursionError) as error:  # wrong text, syntax, endless digits or depth
            raise UserError(f"--cost {path}: not a coefficients file: {error}") from error
        return _model(raw, path)


def load_cost(config: RunConfig) -> CostModel:
    """The cost model that `config.cost` names. Raises UserError for a bad coefficients file.

    A fitted one counts as calibrated for the model that it was fitted to, and its notes say what else differs.
    """
    if config.cost_file is not None:
        model = CostModel.from_file(config.cost_file)
        if model.fit is None:
            return model
        calibrated = model.calibrated and model.fit.fits_model(config)
        return replace(model, calibrated=calibrated, notes=(*model.fit.notes(config), *model.notes))
    if config.constant_cost_ns is not None:
        fixed = CostTerm("constant", config.constant_cost_ns << SHIFT, (0,) * len(TOTALS))
        note = f"every step lasts {config.constant_cost_ns / 1e6:g} ms, whatever it does"
        return CostModel(config.cost, calibrated=False, terms=(fixed,), notes=(note,))
    return roofline_cost(
        config.model_spec,
        find_gpu(config.gpu),
        config.kv_cache_dtype,
        config.tensor_parallel_size,
    )


def roofline_cost(
    model: ModelSpec, gpu: GpuSpec, kv_cache_dtype: str, tensor_parallel_size: int
) -> CostModel:
    """The uncalibrated cost model of published figures (see `roofline_terms`)."""
    exact, notes = roofline_terms(model, gpu, kv_cache_dtype, tensor_parallel_size)
    terms = tuple(
        CostTerm(
            name,
            round(constant * 2**SHIFT),
            tuple(round(coefficients[total] * 2**SHIFT) for total in TOTALS),
        )
        for name, constant, coefficients in exact
    )
    return CostModel("roofline", calibrated=False, terms=terms, notes=notes)


def _model(raw: Any, path: Path) -> CostModel:
    fields = {"schema_version", "name", "calibrated", "unit", "terms", "notes", "fit"}
    _check_keys(raw, fields, fields - {"notes", "unit", "fit"}, path, "the file")
    if _whole(raw["schema_version"], path, "schema_version") != SCHEMA_VERSION:
        _fail(
            path,
            "schema_version",
            raw["schema_version"],
            f"{SCHEMA_VERSION}, which this version reads",
        )
    if raw.get("unit", f"2**-{SHIFT} ns") != f"2**-{SHIFT} ns":
        _fail(path, "unit", raw["unit"], f"'2**-{SHIFT} ns'")
    if not isinstance(raw["calibrated"], bool):
        _fail(path, "calibrated", raw["calibrated"], "true or false")
    notes = raw.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        _fail(path, "notes", notes, "a list of texts")
    if not isinstance(raw["terms"], list) or not raw["terms"]:
        _fail(path, "terms", raw["terms"], "a list of at least one term")
    terms = tuple(_term(term, path, f"terms[{row}]") for row, term in enumerate(raw["terms"]))
    name = _text(raw["name"], path, "name")

    def fail(field: str, value: Any, wanted: str) -> NoReturn:
        _fail(path, field, value, wanted)

    fit = FitRecord.from_raw(raw["fit"], fail) if "fit" in raw else None
    return CostModel(name, raw["calibrated"], terms, tuple(notes), fit)


def _term(raw: Any, path: Path, field: str) -> CostTerm:
    fields = {"name", "constant", "coefficients"}
    _check_keys(raw, fields, fields, path, field)
    inner = f"{field}.coefficients"
    _check_keys(raw["coefficients"], set(TOTALS), set(TOTALS), path, inner)
    return CostTerm(
        _text(raw["name"], path, f"{field}.name"),
        _whole(raw["constant"], path, f"{field}.constant"),
        tuple(_whole(raw["coefficients"][total], path, f"{inner}.{total}") for total in TOTALS),
    )


def _check_keys(raw: Any, known: set[str], needed: set[str], path: Path, field: str) -> None:
    if not isinstance(raw, Mapping):
        _fail(path, field, raw, "a table of named values")
    for key in raw:
        if key not in known:
            raise UserError(
                f"--cost {path}: unknown key {key} in {field}{did_you_mean(key, sorted(known))}"
            )
    for key in sorted(needed - raw.keys()):
        raise UserError(f"--cost {path}: {field} has no {key}; add it")


def _text(value: Any, path: Path, field: str) -> str:
    if not isinstance(value, str) or not value:
        _fail(path, field, value, "a text")
    return str(value)


def _whole(value: Any, path: Path, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        _fail(path, field, value, f"a whole number from 0 to 2**{_LARGEST.bit_length() - 1}")
    return int(value)


def _fail(path: Path, field: str, value: Any, wanted: str) -> NoReturn:
    raise UserError(f"--cost {path}: {field} is {value!r}; it must be {wanted}")
