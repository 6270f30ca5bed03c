"""What compile leaves alone, what it notices and how it is undone."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertModel

import hf_adapters
from hf_adapters import errors
from hf_adapters._execution import compiled_state

from .small_models import batch, bert, cosine, distilbert


def compiled(model: Any, target: str = "spyre") -> Any:
    return hf_adapters.compile(model, target=target)


def run(model: nn.Module) -> Tensor:
    with torch.no_grad():
        states: Tensor = model(**batch()).last_hidden_state
    return states


@pytest.mark.parametrize("target", ["cpu", "spyre"])
def test_decompile_is_bitwise(target: str) -> None:
    model, stock = bert(), bert()
    parameters, attributes = dict(model.named_parameters()), set(vars(model))
    compiled(model, target)
    run(model)
    hf_adapters.decompile(model)
    assert type(model) is BertModel
    assert set(vars(model)) == attributes
    assert all(parameters[name] is parameter for name, parameter in model.named_parameters())
    assert all("forward" not in vars(module) for module in model.modules())
    assert torch.equal(run(model), run(stock))


def test_compile_twice_is_compile_once() -> None:
    model = compiled(bert())
    first = run(model)
    assert torch.equal(run(compiled(model)), first)
    with pytest.raises(errors.PatchConflictError, match="decompile"):
        hf_adapters.compile(model, dtype=torch.bfloat16)
    with pytest.raises(errors.PatchConflictError, match="decompile"):
        hf_adapters.unpatch(model)


def test_patched_model_can_be_compiled_and_goes_back_to_stock() -> None:
    model = compiled(hf_adapters.patch(bert()))
    assert cosine(run(model), run(bert())) > 0.99
    assert torch.equal(run(hf_adapters.decompile(model)), run(bert()))


def test_state_dict_and_saved_files_are_stock(tmp_path: Any) -> None:
    model, stock = compiled(bert()), bert().state_dict()
    run(model)
    state = model.state_dict()
    assert list(state) == list(stock)
    assert all(torch.allclose(state[k].cpu().float(), stock[k].float(), atol=2e-3, rtol=2e-3) for k in stock)
    model.save_pretrained(tmp_path)
    again = BertModel.from_pretrained(tmp_path).eval()
    assert again.dtype == torch.float32
    assert torch.equal(run(again), run(bert()))


@pytest.mark.parametrize("how", ["load_state_dict", "assign", "in-place", "replaced", "before"])
def test_new_weights_are_seen(how: str) -> None:
    model, twin = bert(), bert()
    held = model.encoder.layer[1].output.dense.weight
    compiled(model)
    before = run(model)
    with torch.no_grad():
        for each in (model, twin):
            linear = each.encoder.layer[1].output.dense
            if how == "in-place":
                linear.weight.mul_(-2)
            elif how == "replaced":
                linear.weight = nn.Parameter(linear.weight.detach().cpu().float() * -2)
            elif how == "before" and each is model:
                held.mul_(-2)
            elif how == "before":
                linear.weight.mul_(-2)
            else:
                state = {k: -v for k, v in bert().state_dict().items() if v.is_floating_point()}
                each.load_state_dict(state, strict=False, assign=how == "assign")
    after = run(model)
    keep = batch()["attention_mask"].bool()
    assert cosine(after[keep], run(twin)[keep]) > 0.999
    assert cosine(after[keep], before[keep]) < 0.99
    back = run(hf_adapters.decompile(model))
    assert cosine(back[keep], run(twin)[keep]) > 0.9999


def test_moves_from_outside_leave_a_compiled_model_in_place() -> None:
    model = compiled(bert())
    parent = nn.ModuleList([model]).to("cpu")
    assert next(parent.parameters()).device.type == "spyre"
    assert model.device.type == "cpu"
    assert model.dtype == run(model).dtype == torch.float32
    parent.half()  # as of the stock model, the results are in half precision
    assert model.dtype == run(model).dtype == torch.float16
    model.encoder.to("cpu")
    assert cosine(run(model), run(bert())) > 0.99


def test_hooks_fire_once_per_call_in_order() -> None:
    model, fired = compiled(bert()), []
    run(model)
    handles = [
        module.register_forward_hook(lambda m, a, o, name=name: fired.append(name))
        for name, module in model.named_modules()
        if name in ("", "embeddings", "encoder.layer.0", "encoder.layer.1", "encoder.layer.1.attention.self")
    ]
    run(model)
    assert fired == ["embeddings", "encoder.layer.0", "encoder.layer.1.attention.self", "encoder.layer.1", ""]
    for handle in handles:
        handle.remove()
    run(model)
    assert len(fired) == 5


def test_recording_hooks_of_transformers_do_not_stay() -> None:
    model = compiled(bert())
    assert len(model(**batch(), output_hidden_states=True).hidden_states) == 3
    assert model(**batch()).hidden_states is None
    assert not any(module._forward_hooks for module in model.modules())


def test_training_mode_is_refused() -> None:
    model = compiled(bert().train())
    with pytest.raises(RuntimeError, match=r"model\.eval\(\)"):
        run(model)
    assert torch.equal(run(model.eval()), run(model))


def test_other_models_of_the_class_stay_stock() -> None:
    other, forward = distilbert(), type(distilbert()).forward
    before = run(other)
    compiled(distilbert())
    assert torch.equal(run(other), before)
    assert type(other).forward is forward
    assert "forward" not in vars(other.transformer.layer[0])


def test_threads_share_a_model() -> None:
    model = compiled(bert())
    want, wrong = {rows: run_rows(model, rows) for rows in (3, 4)}, []

    def work(rows: int) -> None:
        for _ in range(3):
            if not torch.equal(run_rows(model, rows), want[rows]):
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (3, 4, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def run_rows(model: nn.Module, rows: int) -> Tensor:
    states: Tensor = model(**batch(rows)).last_hidden_state
    return states


def test_weights_beyond_float16_are_refused_and_the_model_is_restored() -> None:
    model = bert()
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[0, 0] = 1e5
    with pytest.raises(errors.WeightRangeError, match=r"encoder\.layer\.0\.output\.dense\.weight.*bfloat16"):
        compiled(model)
    assert type(model) is BertModel
    assert next(model.parameters()).device.type == "cpu"


@pytest.mark.parametrize("wrong", [None, "bert", BertModel])
@pytest.mark.parametrize("function", [hf_adapters.compile, hf_adapters.decompile, hf_adapters.unpatch])
def test_what_is_not_a_model_is_refused(function: Any, wrong: Any) -> None:
    with pytest.raises(errors.ModelTypeError, match=function.__name__):
        function(wrong)


def test_unknown_targets_releases_and_adapters_are_refused() -> None:
    with pytest.raises(errors.UnknownTargetError, match="'tpu'"):
        hf_adapters.compile(bert(), target="tpu")
    with pytest.raises(ValueError, match=r"2026\.07"):
        hf_adapters.compile(bert(), release="1999.01")
    with pytest.raises(errors.UnknownAdapterError, match="nonsense"):
        hf_adapters.compile(bert(), only=["nonsense"])


def test_tied_weights_stay_tied() -> None:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(
        BertConfig(vocab_size=90, hidden_size=64, num_hidden_layers=1, num_attention_heads=1)
    ).eval()
    compiled(model)
    words, decoder = model.bert.embeddings.word_embeddings, model.cls.predictions.decoder
    assert words.weight is decoder.weight
    assert words.weight.device.type == "spyre"
    hf_adapters.decompile(model)
    assert words.weight is decoder.weight


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_writes_behind_the_version_counter_reach_derived_tensors() -> None:
    wide = {"num_attention_heads": 2}
    model, twin = compiled(bert(**wide)), bert(**wide)
    assert hf_adapters.patch_report(model).sites
    for each in (model, twin):
        run(each)
        each.encoder.layer[0].attention.self.value.weight.data.mul_(-2)
    keep = batch()["attention_mask"].bool()
    assert cosine(run(model)[keep], run(twin)[keep]) > 0.999
    assert cosine(run(hf_adapters.decompile(model))[keep], run(twin)[keep]) > 0.999


def test_score_heads_never_read_our_padding() -> None:
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    sizes = {"vocab_size": 90, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "head_dim": 64}
    config = Qwen3Config(**sizes, num_attention_heads=1, num_key_value_heads=1, num_labels=2)
    ids = torch.arange(3, 12)[None]
    for pad, padding in ((None, "never"), (0, "free")):
        config.pad_token_id = pad
        model = compiled(Qwen3ForSequenceClassification(config).eval(), "cpu")
        assert compiled_state(model).padding == padding
        scores = model(input_ids=ids).logits
        assert torch.allclose(hf_adapters.decompile(model)(input_ids=ids).logits, scores, atol=1e-4)
    model = compiled(model, "cpu")
    model.config.pad_token_id = None
    with pytest.raises(errors.UnsupportedOptionError, match="pad_token_id"):
        model(input_ids=ids)


def test_packed_rows_are_refused() -> None:
    from .small_models import qwen3

    model, ids = compiled(qwen3(), "cpu"), torch.arange(3, 9)[None]
    with pytest.raises(errors.UnsupportedOptionError, match="packed"):
        model(input_ids=ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
    assert model(input_ids=ids, position_ids=torch.arange(40, 46)[None]).last_hidden_state.isfinite().all()


def test_patched_model_can_be_placed_and_compiled_by_hand() -> None:
    inputs = batch(2, 64)
    with torch.no_grad():
        want = bert()(**inputs).last_hidden_state
    model = hf_adapters.patch(bert()).half().to("spyre")
    states = torch.compile(model, dynamic=False)(**{k: v.to("spyre") for k, v in inputs.items()}).last_hidden_state
    keep = inputs["attention_mask"].bool()
    assert states.device.type == "spyre"
    assert cosine(states.cpu().float()[keep], want[keep]) > 0.999


@pytest.mark.parametrize("target", ["cpu", pytest.param("spyre", marks=pytest.mark.slow)])
def test_more_tokens_are_added_to_the_table(target: str) -> None:
    def grown(model: Any) -> Any:
        torch.manual_seed(3)  # new rows are drawn around the mean of the old ones
        assert model.resize_token_embeddings(100) is model.get_input_embeddings()
        return model

    inputs = batch(2, 64)
    inputs["input_ids"][0, 3] = 97
    with torch.no_grad():
        want = grown(bert())(**inputs).last_hidden_state
    keep = inputs["attention_mask"].bool()
    model = grown(hf_adapters.compile(bert(), target=target))
    assert cosine(model(**inputs).last_hidden_state[keep], want[keep]) > 0.999
    model = hf_adapters.decompile(model)
    assert (type(model), model.config.vocab_size) == (BertModel, 100)
    by_hand = grown(hf_adapters.patch(bert()).half().to(target)).to("cpu").float()
    assert cosine(by_hand(**inputs).last_hidden_state[keep], want[keep]) > 0.999
    assert hf_adapters.unpatch(by_hand).config.vocab_size == 100
