"""The reversible steps, each on its own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, Qwen3Config, Qwen3Model
from transformers.models.bert.modeling_bert import BertIntermediate
from transformers.models.qwen3 import modeling_qwen3

from hf_adapters import errors, patch_report, patching, protocols
from hf_adapters._patcher import Patcher


class Negated:
    """Mixin: the stock output times a factor kept on the instance."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return self.factor * super().forward(*args, **kwargs)  # type: ignore[misc, attr-defined, no-any-return]


class PaddedLinear:
    """Mixin of a Linear that computes with a derived, zero-padded weight."""

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(x, (0, self.padded.shape[1] - x.shape[-1]))  # type: ignore[attr-defined]
        return nn.functional.linear(padded, self.padded, self.bias)  # type: ignore[attr-defined]


def pad_columns(weight: Tensor, *, to: int) -> Tensor:
    return nn.functional.pad(weight, (0, to - weight.shape[1]))


def no_rotary(q: Tensor, k: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
    return q, k


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def negated(x: Tensor) -> Tensor:
    return -x


def _reaching_itself() -> Callable[[nn.Module, Tensor], Tensor]:
    def forward(self: nn.Module, x: Tensor, again: bool = True) -> Tensor:
        return forward(self, x, False) if again else doubled(x)

    return forward


class SelfReaching(nn.Module):
    """A forward that finds itself in its own closure, as decorated ones may."""

    forward = _reaching_itself()


def bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=32,
            initializer_range=0.5,
        )
    ).eval()


def qwen3() -> Qwen3Model:
    torch.manual_seed(0)
    return Qwen3Model(
        Qwen3Config(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            initializer_range=0.5,
        )
    ).eval()


IDS = torch.arange(2, 12).reshape(2, 5)


def run(model: nn.Module) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(input_ids=IDS).last_hidden_state
    return out


def negate_sites(model: nn.Module) -> list[protocols.Site]:
    return [
        protocols.Site(path, "intermediate", "y", "-y")
        for path, module in model.named_modules()
        if isinstance(module, BertIntermediate)
    ]


def negate_apply(patcher: protocols.PatcherProtocol, model: nn.Module, site: protocols.Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), Negated, factor=-1.0)


def pad_sites(model: nn.Module) -> list[protocols.Site]:
    return [
        protocols.Site(path, "linear", "K", "K padded")
        for path, module in model.named_modules()
        if path.endswith("intermediate.dense")
    ]


def pad_apply(patcher: protocols.PatcherProtocol, model: nn.Module, site: protocols.Site) -> None:
    module = model.get_submodule(site.path)
    patcher.derive(module, "padded", ("weight",), pad_columns, to=64)
    patcher.swap_class(module, PaddedLinear)


def adapter(name: str, sites: object, apply: object) -> protocols.Adapter:
    return protocols.Adapter(name, "for tests", (), "exact", sites, apply, list)  # type: ignore[arg-type]


NEGATE = adapter("negate", negate_sites, negate_apply)
PAD = adapter("pad", pad_sites, pad_apply)


def failing_apply(patcher: protocols.PatcherProtocol, model: nn.Module, site: protocols.Site) -> None:
    negate_apply(patcher, model, site)
    raise KeyError("nothing there")


def test_swapped_class_looks_stock_and_undoes() -> None:
    model, other = bert(), bert()
    stock, before = type(model.encoder.layer[0].intermediate), run(model)
    patching.patch_with(model, [NEGATE])
    cls = type(model.encoder.layer[0].intermediate)
    assert cls is not stock
    assert issubclass(cls, stock)
    assert str(cls) == str(stock)
    assert cls is type(model.encoder.layer[1].intermediate)
    assert not torch.equal(run(model), before)
    assert torch.equal(run(other), before)
    patching.unpatch(model)
    assert type(model.encoder.layer[0].intermediate) is stock
    assert type(model) is BertModel
    assert vars(model).keys() == vars(other).keys()
    assert torch.equal(run(model), before)


def test_patching_twice_is_patching_once() -> None:
    model = bert()
    once = run(patching.patch_with(model, [NEGATE]))
    report = patch_report(model)
    assert torch.equal(run(patching.patch_with(model, [NEGATE])), once)
    assert patch_report(model) is report
    assert len(report.sites) == 2
    with pytest.raises(errors.PatchConflictError):
        patching.patch_with(model, [NEGATE, PAD])


@pytest.mark.parametrize("how", ["pickle", "save", "deepcopy"])
def test_copies_are_patched_and_independent(how: str) -> None:
    model = patching.patch_with(bert(), [NEGATE, PAD])
    want = run(model)
    if how == "pickle":
        copied = pickle.loads(pickle.dumps(model))
    elif how == "save":
        torch.save(model, buffer := io.BytesIO())
        buffer.seek(0)
        copied = torch.load(buffer, weights_only=False)
    else:
        copied = copy.deepcopy(model)
    assert torch.equal(run(copied), want)
    with torch.no_grad():
        copied.encoder.layer[0].intermediate.dense.weight.mul_(2)
    assert not torch.equal(run(copied), want)
    assert torch.equal(run(patching.unpatch(model)), run(bert()))
    assert type(copied) is not BertModel
    assert type(patching.unpatch(copied)) is BertModel


def test_state_dict_stays_stock() -> None:
    model, stock = bert(), bert().state_dict()
    patching.patch_with(model, [NEGATE, PAD])
    run(model)
    patched = model.state_dict()
    assert list(patched) == list(stock)
    assert all(torch.equal(patched[key], stock[key]) for key in stock)


@pytest.mark.parametrize("how", ["in-place", "data", "load_state_dict", "replaced"])
def test_derived_tensors_follow_their_parameters(how: str) -> None:
    model, twin = patching.patch_with(bert(), [PAD]), bert()
    assert torch.allclose(run(model), run(twin), atol=1e-5)
    for each in (model, twin):
        linear = each.encoder.layer[1].intermediate.dense
        if how == "in-place":
            with torch.no_grad():
                linear.weight.mul_(-2)
        elif how == "data":
            linear.weight.data.mul_(-2)
        elif how == "replaced":
            linear.weight = nn.Parameter(linear.weight.detach() * -2)
        else:
            each.load_state_dict({k: v * -2 for k, v in each.state_dict().items()})
    assert torch.allclose(run(model), run(twin), atol=1e-5)
    assert not torch.allclose(run(model), run(bert()), atol=1e-2)


def test_derived_tensors_are_ordinary_after_a_first_call_in_inference_mode() -> None:
    model = patching.patch_with(bert(), [PAD])
    model.encoder.layer[0].intermediate.dense.weight.data.mul_(2)
    with torch.inference_mode():
        run(model)
    assert not model.encoder.layer[0].intermediate.dense.padded.is_inference()


def test_rebinding_leaves_the_modeling_module_alone() -> None:
    model, other = qwen3(), qwen3()
    before, stock = run(model), modeling_qwen3.apply_rotary_pos_emb
    patcher = Patcher(model)
    for layer in model.layers:
        patcher.rebind(layer.self_attn, {"apply_rotary_pos_emb": no_rotary})
    rebound = run(model)
    assert not torch.allclose(rebound, before, atol=1e-3)
    assert modeling_qwen3.apply_rotary_pos_emb is stock
    assert torch.equal(run(other), before)
    assert torch.equal(run(pickle.loads(pickle.dumps(model))), rebound)
    compiled = torch.compile(model.layers[0].self_attn, backend="eager", fullgraph=True)
    states = torch.randn(1, 5, 16)
    rotary = model.rotary_emb(states, torch.arange(5)[None])
    with torch.no_grad():
        got = compiled(states, rotary, None)[0]
        assert torch.allclose(got, model.layers[0].self_attn(states, rotary, None)[0], atol=1e-5)
        assert not torch.allclose(got, other.layers[0].self_attn(states, rotary, None)[0], atol=1e-3)
    patcher.undo()
    assert torch.equal(run(model), before)


def test_rebinding_an_unused_name_is_refused() -> None:
    model = qwen3()
    with pytest.raises(ValueError, match="does not use"):
        Patcher(model).rebind(model.layers[0].self_attn, {"rotate_half": no_rotary})


def test_rebinding_through_a_closure_that_reaches_itself() -> None:
    patcher, module = Patcher(bert()), SelfReaching()
    patcher.rebind(module, {"doubled": negated})
    assert torch.equal(module(torch.ones(2)), -torch.ones(2))
    patcher.undo()
    assert torch.equal(module(torch.ones(2)), 2 * torch.ones(2))


def test_config_overrides_stay_on_this_instance(tmp_path: object) -> None:
    config = bert().config
    first, second = BertModel(config).eval(), BertModel(config).eval()

    def override(patcher: protocols.PatcherProtocol, model: nn.Module, site: protocols.Site) -> None:
        patcher.override_config(model, _attn_implementation="eager", layer_norm_eps=0.5)

    here = adapter("config", lambda model: [protocols.Site("", "config", "sdpa", "eager")], override)
    patching.patch_with(first, [here])
    held = {id(m.config) for m in first.modules() if hasattr(m, "config")}
    assert held == {id(first.config)}
    assert first.config is not config
    assert first.config._attn_implementation == "eager"
    assert second.config._attn_implementation == "sdpa"
    first.save_pretrained(tmp_path)
    assert BertConfig.from_pretrained(tmp_path).layer_norm_eps == config.layer_norm_eps
    assert first.config.layer_norm_eps == 0.5
    patching.unpatch(first)
    assert first.config is config
    assert first.encoder.layer[0].attention.self.config is config


def test_failing_adapter_restores_the_model() -> None:
    model = bert()
    before = run(model)
    with pytest.raises(errors.AdapterError, match=r"adapter broken failed at encoder\.layer\.0"):
        patching.patch_with(model, [NEGATE, adapter("broken", negate_sites, failing_apply)])
    assert type(model) is BertModel
    assert torch.equal(run(model), before)


def test_training_mode_is_refused_and_gradients_are_off() -> None:
    model = patching.patch_with(bert(), [PAD])
    assert not model(input_ids=IDS).last_hidden_state.requires_grad
    model.encoder.layer[1].train()
    with pytest.raises(RuntimeError, match=r"encoder\.layer\.1 is in training mode.*model\.eval\(\)"):
        model(input_ids=IDS)
    assert torch.equal(run(model.eval()), run(patching.patch_with(bert(), [PAD])))


@pytest.mark.parametrize("wrong", [None, "bert", 3, BertModel, object()])
def test_what_is_not_a_model_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="patch") as caught:
        patching.patch_with(wrong, [])  # type: ignore[type-var]
    assert isinstance(caught.value, errors.HfAdaptersError)


def test_parameters_cannot_be_replaced() -> None:
    model = bert()
    with pytest.raises(ValueError, match="state_dict"):
        Patcher(model).set_attr(model.pooler.dense, "weight", None)


def test_compiled_patched_model_sees_new_weights() -> None:
    model = patching.patch_with(bert(), [PAD])
    compiled = torch.compile(model, backend="eager")
    run(compiled)
    model.encoder.layer[1].intermediate.dense.weight.data.mul_(-2)
    assert torch.allclose(run(compiled), run(model), atol=1e-6)
