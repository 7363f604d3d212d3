"""Plain Hugging Face models: exact logits, safetensors only, one line per mistake, a hub on this machine."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
import torch

from hooks.causal_lm import CausalLM, config_strides, fetch, load_causal_lm, read_config
from hooks.errors import CheckpointError, ConfigError, ModelCheckError, PhaselensError, SiteError
from hooks.sites import HookedModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=20,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("llama") / "llama"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return load_causal_lm(folder)


def test_the_logits_are_the_class_s(folder, model):
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(14).reshape(2, 7)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        expected = plain(input_ids=tokens).logits
    assert torch.equal(model(tokens), expected)
    assert torch.allclose(model(tokens, last_only=True), expected[:, -1:], atol=1e-6)
    assert model(tokens, last_only=True).shape == (2, 1, 30)


def test_a_given_model_keeps_the_mode_of_every_module():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        attention_dropout=0.5,
    )  # fmt: skip
    given = LlamaForCausalLM(config).train()
    given.model.layers[0].eval()
    before = [module.training for module in given.modules()]
    adapter, tokens = CausalLM(given), torch.arange(6)[None]
    logits = adapter(tokens)
    assert [module.training for module in given.modules()] == before
    with torch.no_grad():
        assert torch.equal(logits, given.eval()(input_ids=tokens).logits), "evaluated without dropout"


def test_it_is_a_model_to_interp(model):
    assert isinstance(model, HookedModel)
    sizes = model.cfg
    assert (sizes.n_layers, sizes.n_heads, sizes.n_kv_heads, sizes.d_head, sizes.d_vocab) == (2, 2, 1, 8, 30)
    assert [model.geometry(layer) for layer in range(2)] == [None, None]
    assert (model.name, model.task, model.site_names()) == ("llama", None, [])
    with pytest.raises(ConfigError, match="0 to 1"):
        model.geometry(2)


def test_nothing_inside_can_be_reached(model):
    for attempt in (
        lambda: model.hooks([("hook_embed", print)]),
        lambda: model.start_cache(1),
        lambda: model.run_with_cache(torch.zeros(1, 2, dtype=torch.long)),
        lambda: model(torch.zeros(1, 2, dtype=torch.long), stop_at_layer=1),
    ):
        with pytest.raises(SiteError, match="no hook sites"):
            attempt()
    with model.hooks():
        pass


def test_the_hash_knows_weights_and_sizes(folder, model):
    again = load_causal_lm(folder)
    assert again.content_hash() == model.content_hash()
    other = load_causal_lm(folder)
    with torch.no_grad():
        other.hf.lm_head.weight[3, 5] += 1e-3
    assert other.content_hash() != model.content_hash()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rms_norm_eps", 1e-3),
        ("hidden_act", "gelu"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 500.0}),
    ],
)
def test_the_hash_knows_every_setting_that_changes_logits(folder, model, tmp_path, key, value):
    shutil.copytree(folder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    assert key in config
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {key: value}))
    other = load_causal_lm(tmp_path / "other")
    tokens = torch.arange(14).reshape(2, 7)
    assert not torch.equal(other(tokens), model(tokens))
    assert other.content_hash() != model.content_hash()


def test_the_hash_does_not_know_paths_versions_and_tasks(folder, model, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    config = json.loads((folder / "config.json").read_text())
    other = {"transformers_version": "4.0.0", "use_cache": False, "phaselens_task": {"n_keys": 3}}
    (tmp_path / "moved" / "config.json").write_text(json.dumps(config | other))
    assert load_causal_lm(tmp_path / "moved").content_hash() == model.content_hash()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tokens": [[1, 2], [3]]}, "ragged"),
        ({"tokens": [[1, 30]]}, "valid: 0 to 29"),
        ({"tokens": [[1] * 21]}, "at most 20"),
        ({"tokens": [[1, 2, 3]], "attention_mask": torch.tensor([[0, 1, 1]])}, "padding"),
        ({"tokens": [[1, 2, 3]], "position_ids": torch.tensor([[1, 2, 3]])}, "must be 0 to 2"),
        ({"tokens": [[1, 2, 3]], "position_ids": torch.arange(2)}, r"not a tensor of shape \[2\]"),
        ({"tokens": [[1, 2, 3]], "attention_mask": torch.ones(1, 2)}, r"shape \[1, 2\]; valid: \[1, 3\]"),
    ],
)
def test_input_that_would_move_phases_is_refused(given, told, model):
    with pytest.raises(PhaselensError, match=told):
        model(**given)


def test_masks_and_positions_that_change_nothing_are_fine(model):
    tokens = torch.arange(6).reshape(2, 3)
    same = model(tokens, attention_mask=torch.ones(2, 3), position_ids=torch.arange(3)[None])
    assert torch.equal(same, model(tokens))


def test_nan_weights_are_told(folder):
    broken = load_causal_lm(folder)
    with torch.no_grad():
        broken.hf.lm_head.weight[0, 0] = torch.nan
    with pytest.raises(ModelCheckError, match="NaN"):
        broken(torch.zeros(1, 2, dtype=torch.long))


def test_quantized_weights_on_a_cpu_are_refused(folder):
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(folder)
    plain.lm_head.weight = torch.nn.Parameter(
        plain.lm_head.weight.to(torch.float8_e4m3fn), requires_grad=False
    )
    with pytest.raises(ConfigError, match="float8_e4m3fn do not run on a CPU"):
        CausalLM(plain)


# ------------------------------------------------------------------------------------------- folders


def _changed(folder, tmp_path, **config):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    described = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(described | config))
    return copy


def test_pickled_weights_are_never_read(folder, tmp_path):
    copy = _changed(folder, tmp_path)
    (copy / "model.safetensors").unlink()
    marker = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(marker),))

    torch.save({"x": Bomb()}, copy / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        load_causal_lm(copy)
    assert not marker.exists()


def test_code_that_comes_with_a_model_is_never_run(folder, tmp_path):
    marker = tmp_path / "ran"
    auto = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
    copy = _changed(folder, tmp_path, model_type="own_model", auto_map=auto)
    (copy / "own.py").write_text(f"import os; os.mkdir({str(marker)!r})")
    with pytest.raises(CheckpointError, match="code that comes with a model is not run"):
        load_causal_lm(copy)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized weights.*--export"),
        ({"model_type": "deepseek_v99"}, "type 'deepseek_v99', which this transformers does not have"),
        ({"num_hidden_layers": 3}, "missing keys, first model.layers.2"),
        ({"hidden_size": 12, "head_dim": 8}, "cannot load|mismatched"),
        ({"attn_implementation": "paged"}, "valid: eager, sdpa"),
        ({"rms_norm_eps": 10**400}, "whole number of 401 digits; valid: up to 20"),
        ({"attn_implementation": "eager", "_attn_implementation": "paged"}, "_attn_implementation='paged'"),
    ],
)
def test_a_folder_that_does_not_fit_is_one_line(config, told, folder, tmp_path):
    with pytest.raises(PhaselensError, match=told) as error:
        load_causal_lm(_changed(folder, tmp_path, **config))
    assert "\n" not in str(error.value)


def test_truncated_weights_are_told(folder, tmp_path):
    copy = _changed(folder, tmp_path)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="cannot load"):
        load_causal_lm(copy)


def test_config_files_that_cannot_be_read(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="as JSON"):
        read_config(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        fetch(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="no folder"):
        fetch("./nothing")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"compress_ratios": 4}, "compress_ratios=4"),
        ({"compress_ratios": {"0": 4}}, "compress_ratios="),
        ({"compress_ratios": [4, None]}, "compress_ratios="),
        ({"compress_ratios": [True]}, "compress_ratios="),
        ({"text_config": "x"}, "text_config='x'"),
        ({"text_config": [4]}, "text_config="),
        ({"text_config": {"compress_ratios": "4"}}, "compress_ratios='4'"),
        ({"layer_types": 3, "compress_rates": {"a": 4}}, "layer_types=3"),
        ({"layer_types": [[1]], "compress_rates": {"a": 4}}, "layer_types="),
        ({"compress_rates": [4]}, r"compress_rates=\[4\]"),
        ({"compress_rates": 4}, "compress_rates=4"),
        ({"compress_rates": {"a": "4"}}, "compress_rates="),
        ({"compress_rate_hca": 4.5}, "compress_rate_hca=4.5"),
    ],
)
def test_settings_of_a_shape_that_is_not_understood_are_named(config, key):
    with pytest.raises(ConfigError, match=rf"^{key}.* in config.json is not understood; valid: "):
        config_strides(config)


CSA, HCA, SLIDING = "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("config", "strides"),
    [
        ({}, ()),
        ({"compress_ratios": [0, 0, 4, 128, 4, 0]}, (4, 128)),  # V4
        ({"compress_ratios": [0, 0, *[2] * 18, *[1] * 20]}, (2,)),  # V4.1-Flash: ratio 1 pools nothing
        ({"layer_types": [SLIDING, CSA], "compress_rates": {CSA: 4, HCA: 128}}, (4,)),  # HCA is not used
        ({"layer_types": [HCA], "compress_rate_csa": 4, "compress_rate_hca": 64}, (64,)),
        ({"text_config": {"compress_ratios": [2]}}, (2,)),
        ({"layer_types": ["full_attention"]}, ()),
    ],
)
def test_strides_are_read_from_the_config(config, strides):
    assert config_strides(config) == strides


def test_a_rate_that_is_no_number_is_told():
    with pytest.raises(ConfigError, match=r"4\.5"):
        config_strides({"compress_ratios": [4.5]})


# ------------------------------------------------------------------------------------------- a hub


class Hub(http.server.BaseHTTPRequestHandler):
    """The few answers of the hub that a snapshot download needs."""

    def __init__(self, *args, root, asked, **kwargs):
        self.root, self.asked = root, asked
        super().__init__(*args, **kwargs)

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET(body=False)

    def do_GET(self, body=True):
        path = self.path.split("?")[0]
        names = sorted(p.name for p in self.root.iterdir())
        if "/tree/" in path:
            listed = [
                {"type": "file", "path": n, "size": (self.root / n).stat().st_size, "oid": "0" * 40}
                for n in names
            ]
            return self.answer(json.dumps(listed).encode(), body)
        if path.startswith("/api/models/owner/model"):
            files = [{"rfilename": n} for n in names]
            return self.answer(
                json.dumps({"id": "owner/model", "sha": "a" * 40, "siblings": files}).encode(), body
            )
        file = self.root / path.rsplit("/", 1)[1]
        if path.startswith("/owner/model/resolve/") and file.exists():
            self.asked.add(file.name)
            return self.answer(file.read_bytes(), body)
        return self.answer(b"{}", body, code=404)

    def answer(self, data, body, code=200):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()
        if body:
            self.wfile.write(data)


def test_a_hub_id_is_fetched_without_pickles_and_code(folder, tmp_path):
    root = tmp_path / "repo"
    shutil.copytree(folder, root)
    for name in ("pytorch_model.bin", "own.py", "README.md"):
        (root / name).write_text("never to be fetched")
    asked: set[str] = set()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, root=root, asked=asked))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = (
        "from hooks.causal_lm import fetch\n"
        "print(sorted(p.suffix for p in fetch('owner/model', weights=False).iterdir()))\n"
        "print(fetch('owner/model'))\n"
        "try: fetch('owner/other')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "PYTHONPATH": os.getcwd(),
    }  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "['.json', '.json']"
    assert load_causal_lm(second).content_hash() == load_causal_lm(folder).content_hash()
    assert third.startswith("CheckpointError 'owner/other' is not a folder, and the hub does not give it")
    assert "404" in third
    assert asked == {"config.json", "generation_config.json", "model.safetensors"}
