"""Folders whose config.json holds what its keys do not promise: one line that names the key, no traceback."""

import json

import pytest

from interp.cli import main
from tests.interp.audit_models import save


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return save(tmp_path_factory.mktemp("config") / "qwen3", "qwen3")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"compress_ratios": 4}, "compress_ratios=4"),
        ({"text_config": "x"}, "text_config='x'"),
        ({"layer_types": 3, "compress_rates": {"compressed_sparse_attention": 4}}, "layer_types=3"),
        ({"compress_rates": [4]}, "compress_rates=[4]"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings='long'"),
        ({"phaselens_task": [1]}, "phaselens_task=[1]"),
        ({"model_type": ["qwen3"]}, "model_type=['qwen3']"),
        ({"phaselens": 1, "config": 5}, "configuration 5"),
    ],
)
def test_a_config_that_is_not_understood_is_one_line(qwen3, change, told, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in qwen3.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((qwen3 / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | change))
    prompts = tmp_path / "prompts.jsonl"
    assert main(["audit", str(folder), "--context", "200", "--records", "8", "--export", str(prompts)]) == 2
    error = capsys.readouterr().err.strip()
    assert told in error
    assert "is not understood; valid: " in error
    assert "Traceback" not in error
    assert not prompts.exists()
