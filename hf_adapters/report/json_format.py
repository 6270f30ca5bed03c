"""The report as JSON; docs/report.md documents every field."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from hf_adapters.report.summary import PUBLISHED, SCHEMA_VERSION, Summary


def render(summary: Summary) -> str:
    """The report as indented JSON text."""
    return json.dumps(as_dict(summary), indent=2, allow_nan=False)


def as_dict(summary: Summary) -> dict[str, Any]:
    """The report as plain data, in the documented form."""
    provenance = dataclasses.asdict(summary.provenance)
    rule_titles = provenance.pop("rule_titles")
    return {
        "schema_version": SCHEMA_VERSION,
        "generated": summary.generated,
        **provenance,
        "coverage": {
            str(top): {**dataclasses.asdict(cover), "models_share": cover.models_share}
            for top, cover in summary.coverage.items()
        },
        "verdicts": summary.verdicts,
        "verdicts_by_structure": summary.verdicts_by_structure,
        "families": summary.families,
        "adapters": summary.adapters,
        "adapter_sets": summary.adapter_sets,
        "reasons": [{**reason, "title": rule_titles.get(reason["rule"])} for reason in summary.reasons],
        "blocking": summary.blocking,
        "curve": [
            {"rank": rank, "models_share": models, "downloads_share": downloads}
            for rank, models, downloads in summary.curve
        ],
        "published": dict(PUBLISHED),
    }
