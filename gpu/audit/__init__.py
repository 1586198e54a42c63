"""Every slot of an executed pool against the decision log, and the parts against the recorder."""

from .audit import Audit, AuditSetting, LayerGroup
from .findings import Finding, Findings

__all__ = ["Audit", "AuditSetting", "Finding", "Findings", "LayerGroup"]
