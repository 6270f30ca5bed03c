"""Adapters keep to the releases and versions that they were proven with, and the report says when they do not apply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf_adapters import _versions, patch, patch_report
from hf_adapters.catalogue import catalogue
from hf_adapters.patching import patch_with
from tests.adapters import families


def test_a_release_that_lowers_the_stock_form_retires_the_adapter() -> None:
    report = patch_report(patch(families.build("qwen3"), release="2026.09"))
    assert [item.name for item in report.left_out] == ["small_powers"]
    assert "2026.09 lowers the stock form" in report.left_out[0].reason
    assert "not applied: small_powers" in str(report)


def test_installed_versions_are_those_proven() -> None:
    assert all(_versions.outside(adapter.versions) is None for adapter in catalogue())


def test_an_adapter_outside_of_its_versions_is_not_applied() -> None:
    old = [replace(adapter, versions={"torch": ("1.0", "2.0")}) for adapter in catalogue()]
    report = patch_report(patch_with(families.build("bert"), old))
    assert report.adapters == ()
    assert {item.name for item in report.left_out} == {
        adapter.name for adapter in old if adapter.needed_by(report.release)
    }
    assert "proven with 1.0 <= version < 2.0" in report.left_out[0].reason


@pytest.mark.parametrize(
    ("installed", "inside"),
    [("2.13.0+cpu", True), ("2.13", True), ("2.9.1", False), ("2.14.0", False), ("2.13.1rc1", True), (None, True)],
)
def test_versions_compare_by_number(installed: str | None, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_versions, "_installed", lambda name: installed)
    assert (_versions.outside({"torch": ("2.13", "2.14")}) is None) is inside
