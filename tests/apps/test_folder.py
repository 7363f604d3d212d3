"""Nothing outside of the chosen folder is opened, nor anything that is too large or no result."""

import json

import pytest

from apps.explorer import folder
from apps.explorer.folder import audit_names, load_audit, load_report, model_folder, model_names, report_names
from hooks.errors import CheckpointError


def test_names_are_those_of_the_folder(reports):
    assert report_names(reports) == ["tiny"]
    assert model_names(reports) == ["model"]
    assert audit_names(reports) == ["audit/completion"]


@pytest.mark.parametrize("name", ["..", "../tiny", "/etc", "tiny/../../x", ""])
@pytest.mark.parametrize("opens", [load_report, load_audit, model_folder])
def test_nothing_outside_the_folder_is_opened(reports, name, opens):
    with pytest.raises(CheckpointError, match=r"^no "):
        opens(reports, name)


def test_links_that_lead_out_are_not_listed(reports, tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "knockout.nc").symlink_to(reports / "tiny" / "knockout.nc")
    (tmp_path / "inside" / "model.safetensors").symlink_to(reports / "model" / "model.safetensors")
    (tmp_path / "whole").symlink_to(reports / "tiny", target_is_directory=True)
    assert report_names(tmp_path) == []
    assert model_names(tmp_path) == []


def test_a_config_that_is_a_link_out_is_refused(reports, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    (tmp_path / "m" / "config.json").symlink_to(reports / "model" / "config.json")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        model_folder(tmp_path, "m")


def weights(path, header: bytes) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize(
    ("shapes", "match"),
    [([[1]] * 9000, "over 8192 tensors"), ([[1] * 7], "6 dimensions"), (None, "damaged")],
)
def test_weights_with_too_much_in_them_are_refused(tmp_path, shapes, match):
    header = "no json" if shapes is None else json.dumps({str(i): {"shape": s} for i, s in enumerate(shapes)})
    weights(tmp_path / "m", header.encode())
    with pytest.raises(CheckpointError, match=match):
        model_folder(tmp_path, "m")


def test_large_files_are_refused_before_they_are_read(reports, monkeypatch):
    monkeypatch.setattr(folder, "MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match="over 0 MB"):
        model_folder(reports, "model")
