"""What of a worker's answer becomes a verdict."""

from __future__ import annotations

import pytest

from hf_adapters.store import VERDICTS
from hf_adapters.sweep.fingerprint import Fingerprint, fingerprint, hash_files
from hf_adapters.sweep.messages import Outcome, decode, encode, finite
from hf_adapters.sweep.record import BASE, verdict_record

IDENTITY = Fingerprint(
    value="v", base="b", release="2026.07", release_fingerprint="r", code="c", adapters="a", versions={"torch": "2"}
)


def test_known_fields_become_columns_and_the_rest_details() -> None:
    result = {
        "verdict": "adapted",
        "reason": "",
        "multiple": 1.5,
        "launches": 7,
        "adapters": {"gelu": "h"},
        "rule": None,
    }
    record = verdict_record(Outcome(kind="done", result=result, seconds=3.0, peak_rss=5), IDENTITY, signature="s")
    assert (record.verdict, record.multiple, record.adapters) == ("adapted", 1.5, {"gelu": "h"})
    assert (record.signature, record.fingerprint, record.release, record.seconds) == ("s", "v", "2026.07", 3.0)
    assert record.details["launches"] == 7
    assert record.details[BASE] == "b"
    assert record.versions == {"torch": "2"}


def test_a_worker_cannot_claim_another_release_or_fingerprint() -> None:
    result = {"verdict": "native", "reason": "", "release": "2099.01", "fingerprint": "forged", "signature": "other"}
    record = verdict_record(Outcome(kind="done", result=result), IDENTITY, signature="s")
    assert (record.release, record.fingerprint, record.signature) == ("2026.07", "v", "s")


@pytest.mark.parametrize(
    ("kind", "verdict", "code"),
    [
        ("timed-out", "timed-out", "E_TIMEOUT"),
        ("memory", "crashed", "E_MEMORY"),
        ("crashed", "crashed", "E_CRASH"),
        ("failed", "crashed", "E_WORK_FAILED"),
    ],
)
def test_failures_of_the_process_keep_their_reason(kind: str, verdict: str, code: str) -> None:
    record = verdict_record(Outcome(kind=kind, reason="why", detail="last words"), IDENTITY, signature="s")
    assert (record.verdict, record.reason, record.error_code) == (verdict, "why", code)
    assert record.verdict in VERDICTS
    assert record.details["output"] == "last words"


def test_an_unknown_verdict_is_no_verdict() -> None:
    record = verdict_record(Outcome(kind="done", result={"verdict": "splendid"}), IDENTITY, signature="s")
    assert record.verdict == "crashed"
    assert "splendid" in record.reason


def test_messages_survive_the_pipe() -> None:
    message = {"text": "a\nb\u2028", "numbers": [1, 2.5, None], "nested": {"x": True}}
    assert decode(encode(message)) == message
    assert encode(message).count(b"\n") == 1


def test_nan_is_refused_unless_made_finite() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"x": float("nan")})
    assert finite({"x": float("nan"), 1: (float("inf"), {"y": {2.0}})}) == {"x": None, "1": [None, {"y": [2.0]}]}


def test_releases_have_fingerprints_of_their_own() -> None:
    first, second = fingerprint("2026.07"), fingerprint("2026.09")
    assert first.value != second.value
    assert first.code == second.code
    assert first == fingerprint("2026.07")
    assert fingerprint("2026.07", "bfloat16").value not in (first.value, fingerprint("2026.07", "float16").value)


def test_the_code_hash_knows_names_and_contents(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "a.py").write_text("1")
    (folder / "b.py").write_text("2")
    files = [("a.py", folder / "a.py"), ("b.py", folder / "b.py")]
    whole = hash_files(files)
    assert hash_files(reversed(files)) == whole
    assert hash_files([("a.py", folder / "b.py"), ("b.py", folder / "a.py")]) != whole
    (folder / "a.py").write_text("3")
    assert hash_files(files) != whole


def test_everything_that_decides_a_verdict_is_in_the_fingerprint() -> None:
    from hf_adapters.sweep import fingerprint as module

    names = {name for name, _ in module._files(module._DECIDING)}
    for expected in (
        "spyre_backend/compiler/lowering.py",
        "spyre_backend/capabilities/2026_07.toml",
        "hf_adapters/patching.py",
        "hf_adapters/runner.py",
        "hf_adapters/validate.py",
        "hf_adapters/validation/acceptance.py",
        "hf_adapters/sweep/work.py",
        "hf_adapters.corpus/weights.py",
    ):
        assert expected in names
    assert not any(
        name.startswith(("hf_adapters/store", "hf_adapters/report", "hf_adapters/commands")) for name in names
    )
    adapters = {name for name, _ in module._files(module._ADAPTERS)}
    assert "hf_adapters/adapters/head_padding.py" in adapters
    assert not adapters & names
