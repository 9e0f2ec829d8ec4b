"""The structured log of compilations."""

from __future__ import annotations

from torch._logging._internal import trace_structured as trace_structured
