"""The release files: loading, look-ups, and that they name things that exist."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch._inductor.inductor_prims

from spyre_backend import capabilities
from spyre_backend.capabilities import loader

RELEASES = capabilities.available()


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> capabilities.Capabilities:
    return capabilities.load(request.param)


def test_both_releases_exist() -> None:
    assert set(RELEASES) >= {"2026.07", "2026.09"}


def test_default_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(capabilities.ENVIRONMENT_VARIABLE, raising=False)
    assert capabilities.current().release == "2026.07"


def test_environment_chooses_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(capabilities.ENVIRONMENT_VARIABLE, "2026.09")
    assert capabilities.current().release == "2026.09"


def test_unknown_release_lists_the_available_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for choose in (capabilities.load, capabilities.set_release):
        with pytest.raises(capabilities.UnknownRelease, match=r"'2025\.01'.*2026\.07, 2026\.09"):
            choose("2025.01")
    with pytest.raises(capabilities.UnknownRelease), capabilities.use("newest"):
        pass
    monkeypatch.setenv(capabilities.ENVIRONMENT_VARIABLE, "2030.01")
    with pytest.raises(ValueError, match=r"2030\.01"):
        capabilities.current()


def test_use_restores_the_earlier_choice() -> None:
    before = capabilities.current().release
    with capabilities.use("2026.09"):
        with capabilities.use("2026.07") as inner:
            assert inner.release == "2026.07"
        assert capabilities.current().release == "2026.09"
    assert capabilities.current().release == before


def test_use_restores_after_an_error() -> None:
    before = capabilities.current().release
    with pytest.raises(ZeroDivisionError), capabilities.use("2026.09"):
        raise ZeroDivisionError
    assert capabilities.current().release == before


def test_fingerprint_differs_between_releases() -> None:
    assert len({capabilities.load(name).fingerprint for name in RELEASES}) == len(RELEASES)


def test_september_changes_only_what_it_says() -> None:
    july, september = capabilities.load("2026.07"), capabilities.load("2026.09")
    changed = {name for name, entry in september.operators.items() if july.operators.get(name) != entry}
    assert changed == {"aten.pow.Tensor_Scalar", "aten.pow_.Scalar", "aten.embedding", "aten.index_select"}
    assert september.limits == july.limits
    assert september.numerics == july.numerics
    assert september.rules == july.rules


def test_fixed_constants(release: capabilities.Capabilities) -> None:
    limits = release.limits
    assert (limits.stick_bytes, limits.num_cores, limits.loop_count_max) == (128, 32, 65_535)
    assert limits.span_limit_bytes == 256 * 2**20 - 4096
    usable = (limits.lx_bytes - limits.lx_reserved_bytes) * (1 - limits.lx_backend_fraction)
    assert limits.lx_usable_bytes == -(-int(usable) // 128) * 128
    sizes = {
        "float16": 2,
        "bfloat16": 2,
        "bool": 2,
        "float32": 4,
        "int32": 4,
        "int64": 4,
        "int8": 1,
        "float8_e4m3fn": 1,
    }
    for dtype, size in sizes.items():
        assert limits.sticks_of(dtype) * size == limits.stick_bytes


def test_dl16_constants_follow_from_the_format(release: capabilities.Capabilities) -> None:
    numerics = release.numerics
    assert numerics.dl16_max == (1 + 510 / 512) * 2**32
    assert numerics.dl16_min == pytest.approx((1 + 1 / 512) * 2**-31, rel=1e-12)
    assert numerics.minus_inf_value == -(1 + 511 / 512) * 2**24
    exponent, fraction = (numerics.minus_inf_code >> 9) & 0x3F, numerics.minus_inf_code & 0x1FF
    assert -(1 + fraction / 512) * 2.0 ** (exponent - 31) == numerics.minus_inf_value
    assert numerics.exp_floor == 2**-24


@pytest.mark.parametrize("name", sorted({name for r in RELEASES for name in capabilities.load(r).operators}))
def test_operator_exists_in_torch(name: str) -> None:
    namespace, packet, *overload = name.split(".")
    target = getattr(getattr(torch.ops, namespace), packet)
    if overload:
        target = getattr(target, overload[0])
    assert str(target) in (name, f"{name}.default")


def test_overload_lookup(release: capabilities.Capabilities) -> None:
    aten = torch.ops.aten
    cases = {
        aten.add.Tensor: "aten.add",
        aten.add_.Tensor: "aten.add",
        aten.add.out: "aten.add",
        aten.masked_fill_.Scalar: "aten.masked_fill",
        aten.where.self_out: "aten.where.self",
        aten.pow.Tensor_Scalar: "aten.pow.Tensor_Scalar",
        aten.pow.Tensor_Scalar_out: "aten.pow.Tensor_Scalar",
        aten.pow_.Scalar: "aten.pow_.Scalar",
        aten.div_.Tensor_mode: "aten.div.Tensor_mode",
        aten.repeat.out: "aten.repeat.out",
        "aten::pow.Tensor_Scalar": "aten.pow.Tensor_Scalar",
    }
    for target, expected in cases.items():
        entry = release.operator(target)
        assert entry is not None, target
        assert entry.name == expected, target


def test_operator_overloads_have_entries(release: capabilities.Capabilities) -> None:
    overloads = release.operator_overloads()
    assert torch.ops.aten.add.Tensor in overloads
    assert torch.ops.aten.pow.Tensor_Tensor in overloads
    assert all(release.operator(overload) is not None for overload in overloads)


def test_unnamed_operator_gets_the_default_policy(release: capabilities.Capabilities) -> None:
    assert release.operator(torch.ops.aten.erfinv.default) is None
    entry = release.policy(torch.ops.aten.erfinv.default)
    assert (entry.compiled, entry.eager, entry.rule) == ("unsupported", "fallback", "op-unsupported")
    assert entry.support(eager=True) == "fallback"


def test_pow_and_embedding_by_release() -> None:
    pow_scalar, embedding = torch.ops.aten.pow.Tensor_Scalar, torch.ops.aten.embedding.default
    july, september = capabilities.load("2026.07"), capabilities.load("2026.09")
    assert (july.policy(pow_scalar).compiled, july.policy(pow_scalar).rule) == ("unsupported", "pow-scalar-exponent")
    assert september.policy(pow_scalar).compiled == "native"
    assert (july.policy(embedding).compiled, july.policy(embedding).rule) == ("fallback", "embedding-off-device")
    assert september.policy(embedding).compiled == "native"


def test_dtype_rules(release: capabilities.Capabilities) -> None:
    dtypes = release.dtypes
    assert dtypes.rule_for("add", "float32") is None
    assert dtypes.rule_for("tanh", "float32") == "dtype-fp32-op"
    assert dtypes.rule_for("batchmatmul", "float32") == "matmul-dtype"
    assert dtypes.rule_for("batchmatmul", "bfloat16") is None
    assert dtypes.rule_for("add", "int32") is None
    assert dtypes.rule_for("sub", "int32") == "dtype-unsupported"
    assert dtypes.rule_for("sub", "int64") is None
    assert dtypes.rule_for("realdiv", "int64") == "dtype-unsupported"
    assert dtypes.rule_for("identity", "int64") is None
    assert dtypes.rule_for("identity", "float64") == "dtype-unsupported"
    assert dtypes.rule_for("add", "uint32") == "dtype-unsupported"


def test_cast_table(release: capabilities.Capabilities) -> None:
    cast = release.dtypes.cast
    assert cast("float16", "bfloat16") == "identity"
    assert cast("float16", "float32") == "dl16tofp32"
    assert cast("float32", "float16") == "fp32todl16"
    assert cast("float8_e4m3fn", "float16") == "fp8todl16"
    assert cast("bool", "int32") is None
    assert cast("bool", "float32") is None
    assert cast("int64", "float16") is None
    assert cast("int64", "int64") == "identity"


def test_dtypes_of_the_files_are_torch_dtypes(release: capabilities.Capabilities) -> None:
    for name, dtype in release.dtypes.formats.items():
        assert isinstance(getattr(torch, name), torch.dtype)
        assert dtype.refused == (dtype.device_format == "")
        assert dtype.refused or dtype.stick_elems > 0


def test_silent_bugs_are_off_and_described(release: capabilities.Capabilities) -> None:
    assert len(release.settings.silent_bugs) >= 12
    for name, bug in release.settings.silent_bugs.items():
        assert not release.settings.bug(name)
        assert all((bug.trigger, bug.effect, bug.state, bug.source))
    with pytest.raises(KeyError):
        release.settings.bug("issue-0")


def test_rules_are_complete(release: capabilities.Capabilities) -> None:
    for rule in release.rules.values():
        assert all((rule.title, rule.message, rule.source, rule.hint)), rule.id
    assert release.rule("topk-limit").render(k=129, largest=True) == "topk with k=129, largest=True"
    assert release.rule("dynamic-shape").render() == release.rule("dynamic-shape").message
    with pytest.raises(KeyError, match="no-such-rule"):
        release.rule("no-such-rule")


def test_capabilities_are_immutable(release: capabilities.Capabilities) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        release.release = "2027.01"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["limits"].pop("num_cores"), "num_cores"),
        (lambda d: d["limits"].update(colour=1), "colour"),
        (lambda d: d["operators"]["aten.add"].update(compiled="perhaps"), "perhaps"),
        (lambda d: d["operators"]["aten.add"].pop("eager"), "aten.add"),
        (lambda d: d["operators"]["aten.add"].update(rule="no-such-rule"), "no-such-rule"),
        (lambda d: d["rules"]["conv"].pop("hint"), "hint"),
    ],
)
def test_malformed_file_says_what_is_wrong(change, message) -> None:
    data = loader._read_release("2026.07")
    change(data)
    with pytest.raises(capabilities.CapabilityFileError, match=message):
        loader._build("2026.07", data)
