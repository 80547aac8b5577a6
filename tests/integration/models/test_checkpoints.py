"""Tiny checkpoints, and what is loaded, capped, selected and saved."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.families import BUILDERS

from odb_example.data.collate import Collator, split_batch
from odb_example.data.samples import SampleMaker
from odb_example.errors import UserError
from odb_example.models.loading import (
    cap_images,
    ensure_model,
    load_model,
    load_processor,
    resolve_device,
    save_checkpoint,
    select_trainable,
)
from odb_example.models.miniature import SPECIAL_TOKENS, TOOL_TOKENS, build_tiny_checkpoint
from odb_example.settings import Settings

pytestmark = pytest.mark.integration


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_tiny_checkpoint_is_small_complete_and_the_same_for_a_seed(name: str, tmp_path: Path) -> None:
    first, again = BUILDERS[name](tmp_path / "a", 3), BUILDERS[name](tmp_path / "b", 3)
    assert contents(first) == contents(again)
    other = BUILDERS[name](tmp_path / "c", 4)
    changed = {file for file, data in contents(other).items() if data != contents(first)[file]}
    assert changed == {"model.safetensors", "miniature.json"}
    model = load_model(str(first), dtype=torch.float32)
    assert model.config.model_type == name
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert {"generation_config.json", "chat_template.jinja", "processor_config.json"} <= contents(first).keys()


def test_special_tokens_stand_in_the_order_of_qwen(tiny_checkpoint: Path) -> None:
    tokenizer = load_processor(str(tiny_checkpoint), image_max_pixels=0).tokenizer
    ids = tokenizer.convert_tokens_to_ids([*SPECIAL_TOKENS, *TOOL_TOKENS])
    assert ids == [*range(ids[0], ids[0] + len(ids))]
    # Offsets in Qwen's vocabulary: 151643 endoftext, 151645 im_end, 151652 vision_start, 151655 image_pad.
    offsets = {token: id_ - ids[0] for token, id_ in zip(SPECIAL_TOKENS, ids, strict=False)}
    assert (offsets["<|im_end|>"], offsets["<|vision_start|>"], offsets["<|image_pad|>"]) == (2, 9, 12)
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")


def test_the_template_writes_what_qwen3_vl_writes(tiny_checkpoint: Path) -> None:
    processor = load_processor(str(tiny_checkpoint), image_max_pixels=0)
    image, question = {"type": "image"}, {"type": "text", "text": "What?"}
    user = {"role": "user", "content": [image, question]}
    expected = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What?<|im_end|>\n<|im_start|>assistant\n"
    assert processor.apply_chat_template([user], tokenize=False, add_generation_prompt=True) == expected
    answered = [{"role": "system", "content": "Be brief."}, user, {"role": "assistant", "content": "7"}]
    written = processor.apply_chat_template(answered, tokenize=False)
    assert written == f"<|im_start|>system\nBe brief.<|im_end|>\n{expected}7<|im_end|>\n"


def test_an_existing_tiny_checkpoint_is_kept_and_another_folder_is_not_touched(tmp_path: Path) -> None:
    folder = build_tiny_checkpoint(tmp_path / "model", seed=0)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert build_tiny_checkpoint(folder, seed=0) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(UserError, match="another tiny checkpoint"):
        build_tiny_checkpoint(folder, seed=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(UserError, match="not empty"):
        build_tiny_checkpoint(tmp_path / "mine", seed=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model"]


_RELOAD = """
import json, sys, torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from PIL import Image

for folder in sys.argv[1:]:
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    inputs = processor(text=[text], images=[Image.new("RGB", (900, 700), "teal")], return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
    print("answer", json.dumps({"length": inputs["input_ids"].shape[1], "logits": logits[0, -1].tolist()}))
"""


def _saved_alone(name: str, where: Path) -> tuple[Path, int, torch.Tensor]:
    """A changed model saved, its base gone: the folder, and the length and last logits of one prompt."""
    base = BUILDERS[name](where / "base", 0)
    processor = load_processor(str(base), image_max_pixels=40_000)
    model = load_model(str(base), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    folder = where / "saved"
    folder.mkdir()
    (folder / "train_summary_odb.json").write_text("{}")
    save_checkpoint(model, processor, folder)
    assert (folder / "train_summary_odb.json").exists()
    assert not list(folder.glob(".saving*"))
    prompt = SampleMaker(processor, max_length=4096, backend="qwen_vl").prompt(
        "Which?", [Image.new("RGB", (900, 700), "teal")]
    )
    inputs, _ = split_batch(Collator(0)([prompt]))
    with torch.no_grad():
        logits = model(**inputs).logits[0, -1]
    shutil.rmtree(base)
    return folder, len(prompt["input_ids"]), logits


def test_saved_checkpoints_give_the_same_in_a_fresh_process_from_their_folders_alone(tmp_path: Path) -> None:
    saved = [_saved_alone(name, tmp_path / name) for name in BUILDERS]
    folders = [str(folder) for folder, _, _ in saved]
    run = subprocess.run(
        [sys.executable, "-c", _RELOAD, *folders], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    answers = [json.loads(line.partition(" ")[2]) for line in run.stdout.splitlines() if line.startswith("answer ")]
    for (_, length, logits), answer in zip(saved, answers, strict=True):
        assert answer["length"] == length
        torch.testing.assert_close(torch.tensor(answer["logits"]), logits, rtol=0.0, atol=1e-5)


def test_saving_again_leaves_no_stale_weights(tiny_checkpoint: Path, tmp_path: Path) -> None:
    processor = load_processor(str(tiny_checkpoint), image_max_pixels=0)
    model = load_model(str(tiny_checkpoint), dtype=torch.float32)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"old")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    save_checkpoint(model, processor, tmp_path)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]
    load_model(str(tmp_path), dtype=torch.float32)


def test_weights_handed_over_whole_are_the_ones_saved(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model = load_model(str(tiny_checkpoint), dtype=torch.float32)
    whole = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
    save_checkpoint(model, load_processor(str(tiny_checkpoint), image_max_pixels=0), tmp_path, state_dict=whole)
    saved = load_model(str(tmp_path), dtype=torch.float32)
    assert all((parameter == 0.5).all() for parameter in saved.parameters())


@pytest.mark.parametrize(
    ("chosen", "trained", "still"),
    [
        ({"freeze_vision_tower": True}, ("merger", "language_model"), ("visual.blocks", "patch_embed")),
        ({"freeze_multimodal_projector": True}, ("visual.blocks", "language_model"), ("merger",)),
        ({"freeze_language_model": True}, ("merger", "visual.blocks"), ("language_model",)),
        ({"keywords": ("merger",)}, ("merger",), ("visual.blocks", "language_model")),
    ],
)
def test_only_the_chosen_parts_stay_trainable(
    tiny_checkpoint: Path, chosen: dict[str, bool], trained: tuple[str, ...], still: tuple[str, ...]
) -> None:
    model = load_model(str(tiny_checkpoint), dtype=torch.float32)
    count = select_trainable(model, **chosen)  # type: ignore[arg-type]
    wanted = [parameter for name, parameter in model.named_parameters() if any(part in name for part in trained)]
    frozen = [parameter for name, parameter in model.named_parameters() if any(part in name for part in still)]
    assert wanted
    assert frozen
    assert all(parameter.requires_grad for parameter in wanted)
    assert not any(parameter.requires_grad for parameter in frozen)
    assert count == sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_nothing_left_to_train_is_an_error(tiny_checkpoint: Path) -> None:
    model = load_model(str(tiny_checkpoint), dtype=torch.float32)
    with pytest.raises(UserError, match="no parameter"):
        select_trainable(model, keywords=("no_such_part",))


def test_a_cap_never_raises_the_checkpoints_own(tiny_checkpoint: Path) -> None:
    image_processor = load_processor(str(tiny_checkpoint), image_max_pixels=50_000).image_processor
    cap_images(image_processor, 10**6)
    assert dict(image_processor.size)["longest_edge"] == 50_000


def test_missing_and_incomplete_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_processor(str(tmp_path / "none"), image_max_pixels=0)
    with pytest.raises(UserError, match=r"config\.json"):
        load_model(str(tmp_path), dtype=torch.float32)


def test_a_checkpoint_without_its_chat_template_is_refused(tmp_path: Path) -> None:
    folder = build_tiny_checkpoint(tmp_path / "model", seed=0)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="chat template"):
        load_processor(str(folder), image_max_pixels=0)


def test_the_miniature_model_is_built_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(preset="miniature", model="outputs/miniature/model")
    assert (Path(ensure_model(settings)) / "config.json").is_file()
    assert ensure_model(Settings(model="some/model")) == "some/model"


def test_devices_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="no CUDA"):
        resolve_device("cuda")
