"""What a validation found: predictions beside measurements, written as `validation.json`.

docs/validation.md says what each field and each prediction means.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
# What a prediction is about; the report shows them in this order.
KINDS = ("decisions", "contents", "parts", "outputs", "time")


@dataclass(frozen=True)
class Prediction:
    """One number that the simulation gave and the execution measured, both in `unit`.

    `tolerance`: the largest difference that passes, by a rule that was fixed before the execution;
    None: shown, not judged. `noise`: by how much the device differs from itself in the same thing, where that was
    measured. `measured` None: it could not be measured, and `note` says why; that fails if judged.
    """

    policy: str
    kind: str
    name: str
    predicted: float
    measured: float | None
    unit: str
    tolerance: float | None
    backend: str
    noise: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"{self.name}: no kind {self.kind}, only {KINDS}"
        assert self.tolerance is None or self.tolerance >= 0, (self.name, self.tolerance)

    @property
    def difference(self) -> float | None:
        """Measured less predicted."""
        return None if self.measured is None else self.measured - self.predicted

    @property
    def passed(self) -> bool | None:
        """Whether the difference is within the tolerance; None where nothing is judged."""
        if self.tolerance is None:
            return None
        # Written so that NaN fails.
        return self.difference is not None and abs(self.difference) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with `difference` and `passed`."""
        return asdict(self) | {"difference": self.difference, "passed": self.passed}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Prediction":
        """The prediction that `to_dict` wrote."""
        return cls(**{field.name: raw[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class PolicyValidation:
    """One policy's part. Directories are run directories, relative to the validation's own.

    `backend`: torch, triton-interpret or cuda. `audit`: what was counted, by name (slots of each
    class, instants, findings). `findings`: the first lines of what was found wrong. `executed_dir`
    also holds `steps.parquet`. Directories are None where no files were written.
    """

    policy: str
    backend: str
    predictions: tuple[Prediction, ...]
    audit: Mapping[str, int]
    findings: tuple[str, ...] = ()
    predicted_dir: str | None = None
    executed_dir: str | None = None

    @property
    def passed(self) -> bool:
        """Nothing that was judged failed, and the audit found nothing."""
        return not self.findings and all(p.passed is not False for p in self.predictions)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "policy": self.policy,
            "backend": self.backend,
            "passed": self.passed,
            "predictions": [prediction.to_dict() for prediction in self.predictions],
            "audit": dict(self.audit),
            "findings": list(self.findings),
            "predicted_dir": self.predicted_dir,
            "executed_dir": self.executed_dir,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "PolicyValidation":
        """The part that `to_dict` wrote."""
        kept = {field.name: raw[field.name] for field in fields(cls)}
        kept["predictions"] = tuple(map(Prediction.from_dict, raw["predictions"]))
        kept["findings"] = tuple(raw["findings"])
        return cls(**kept)


@dataclass(frozen=True)
class Validation:
    """All of `validation.json`.

    `command`: as it was typed. `device`: its name. `versions`: of kvtwin, python, torch, triton,
    numpy. `shape`: model, num_layers, num_heads, num_kv_heads, head_dim, dtype, block_size. `trace`:
    name, num_requests. `cost`: name, calibrated. `prediction_sha256`: of prediction.json, which was
    written before the execution began; None where no file was written. `not_executed`: policies that
    rejected every request. `notes`: sentences that a reader must see.
    """

    command: str
    device: str
    versions: Mapping[str, str]
    shape: Mapping[str, Any]
    trace: Mapping[str, Any]
    cost: Mapping[str, Any]
    prediction_sha256: str | None
    policies: tuple[PolicyValidation, ...]
    not_executed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Every policy passed, and at least one was validated."""
        return bool(self.policies) and all(policy.passed for policy in self.policies)

    def to_dict(self) -> dict[str, Any]:
        """The content of validation.json."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "schema_version": SCHEMA_VERSION,
            "passed": self.passed,
            **plain,
            "policies": [policy.to_dict() for policy in self.policies],
            "not_executed": list(self.not_executed),
            "notes": list(self.notes),
        }

    def save(self, path: Path) -> None:
        """Write validation.json."""
        path.write_text(
            json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Validation":
        """The validation that `to_dict` wrote."""
        kept = {field.name: raw[field.name] for field in fields(cls)}
        kept["policies"] = tuple(map(PolicyValidation.from_dict, raw["policies"]))
        for name in ("not_executed", "notes"):
            kept[name] = tuple(raw[name])
        return cls(**kept)
