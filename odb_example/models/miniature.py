"""Tiny checkpoints of the Qwen-VL families, built here without the Hub in a few seconds.

Takes a folder and a seed; leaves an ordinary checkpoint (model, processor, chat template, generation config) that
``AutoProcessor`` and ``AutoModelForImageTextToText`` load. Classes, special-token order, template output and image
arithmetic are the real ones; what is given up is size: under a million random parameters, a byte-level BPE of two
thousand merges trained on texts that scikit-learn ships, and a smallest image of one visual token instead of 64, so
that little pictures cost little. The same seed and library versions give the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from odb_example.errors import UserError
from odb_example.installed import installed

RECIPE = 1
_MARKER = "miniature.json"
_BPE_SIZE = 2000

# Qwen's added tokens in Qwen's order; the second group is not "special": decoding keeps it.
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
TOOL_TOKENS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip

# Words the embedded data uses, and some Chinese, so that neither falls back to bytes throughout.
_OWN_TEXTS = (
    "Answer with the option letter only.\nWhich number is shown?\n(A) 0\n(B) 1\n(C) 2\n(D) 3\n",
    "Describe the image in detail. What is written in the picture? How many digits are there? Read the text.",
    "The image shows a handwritten digit on a light background. The first picture shows a seven, the second a three.",
    "图中的文字是什么？请描述这张图片。这是一张照片，里面有数字和汉字。第一张图片是数字七，第二张图片是数字三。",
    "中国 学习 数据 图片 文字 识别 模型 训练 结果 问题 答案 一二三四五六七八九十 上海 北京 天气 今天 明天",
)

# Both templates write what Qwen's write for system, user and assistant messages whose content is a string or a list
# of image, video and text parts. Qwen2-VL and Qwen2.5-VL open with a system message where the conversation has none.
_PARTS = """\
{%- macro parts(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' or 'video' in part -%}<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""
_TURNS = """
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + parts(message.content) + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
_DEFAULT_SYSTEM = (
    "{%- if messages[0].role != 'system' -%}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif -%}"
)
QWEN3_VL_TEMPLATE = _PARTS + _TURNS
QWEN2_VL_TEMPLATE = _PARTS + _DEFAULT_SYSTEM + _TURNS


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    template: str
    patch_size: int
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    processor: Callable[..., Any]
    video_processor: Callable[..., Any]
    model: Callable[[dict[str, Any], dict[str, Any]], PreTrainedModel]


def build_tiny_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Build a tiny Qwen3-VL in ``folder``; the same one already there is kept.

    Raises:
        UserError: ``folder`` holds something else, or cannot be written.
    """
    return _build(_QWEN3_VL, folder, seed)


def build_tiny_qwen2_5_vl(folder: Path, seed: int = 0) -> Path:
    """The same for Qwen2.5-VL."""
    return _build(_QWEN2_5_VL, folder, seed)


def build_tiny_qwen2_vl(folder: Path, seed: int = 0) -> Path:
    """The same for Qwen2-VL."""
    return _build(_QWEN2_VL, folder, seed)


def tiny_tokenizer() -> Qwen2Tokenizer:
    """A byte-level BPE with Qwen's splitting rule and added tokens, trained on the texts above and scikit-learn's."""
    real = Qwen2Tokenizer().backend_tokenizer
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = real.normalizer
    bpe.pre_tokenizer = real.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=_BPE_SIZE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    bpe.train_from_iterator(_texts(), trainer)
    trained = json.loads(bpe.to_str())["model"]
    return qwen_tokenizer(trained["vocab"], [tuple(pair) for pair in trained["merges"]])


def qwen_tokenizer(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Qwen2Tokenizer:
    """Qwen's tokenizer over ``vocab`` and ``merges``, the added tokens following the vocabulary in Qwen's order."""
    added = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    added += [AddedToken(token, special=False, normalized=False) for token in TOOL_TOKENS]
    parts: dict[str, Any] = {"vocab": vocab, "merges": merges, "unk_token": None}
    return Qwen2Tokenizer(
        **parts,
        added_tokens_decoder={len(vocab) + offset: token for offset, token in enumerate(added)},
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=[token for token in SPECIAL_TOKENS if token not in ("<|im_end|>", "<|endoftext|>")],
        model_max_length=262144,
    )


def _texts() -> Iterator[str]:
    for file in sorted(installed("sklearn", "datasets", "descr").glob("*.rst")):
        yield file.read_text(encoding="utf-8")
    yield from _OWN_TEXTS * 8


def _build(family: _Family, folder: Path, seed: int) -> Path:
    folder = Path(folder)
    marker = {"family": family.name, "recipe": RECIPE, "seed": seed}
    if _holds(folder, marker):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}", "name another folder") from error
    try:
        _write(family, workshop, seed)
        (workshop / _MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        workshop.chmod(0o755)
        os.rename(workshop, folder)
    except OSError as error:
        # Another process may have finished first: its checkpoint is this one, byte for byte.
        if not _holds(folder, marker):
            raise UserError(f"cannot write {folder}: {error.strerror or error}", "name another folder") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return folder


def _holds(folder: Path, marker: dict[str, Any]) -> bool:
    path = folder / _MARKER
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found == marker:
            return True
        raise UserError(f"{folder} holds another tiny checkpoint: {found}", f"remove it to build {marker}")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and is no tiny checkpoint", "name another folder")
    return False


def _write(family: _Family, folder: Path, seed: int) -> None:
    tokenizer = tiny_tokenizer()
    processor = family.processor(
        image_processor=Qwen2VLImageProcessor(
            patch_size=family.patch_size,
            image_mean=list(family.image_mean),
            image_std=list(family.image_std),
            size={"shortest_edge": (2 * family.patch_size) ** 2, "longest_edge": 16_777_216},
        ),
        tokenizer=tokenizer,
        video_processor=family.video_processor(patch_size=family.patch_size),
        chat_template=family.template,
    )
    ids = {
        name: tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in (
            ("image_token_id", "image_pad"),
            ("video_token_id", "video_pad"),
            ("vision_start_token_id", "vision_start"),
            ("vision_end_token_id", "vision_end"),
        )
    }
    text = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,  # rounded up, as Qwen's is: rows that no token has
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
    }
    random_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = family.model(text, ids)
    torch.random.set_rng_state(random_state)
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def _qwen3_vl(text: dict[str, Any], ids: dict[str, Any]) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0],
    }  # fmt: skip
    text = {**text, "head_dim": 16, "rope_parameters": rope}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    return Qwen3VLForConditionalGeneration(config)


def _qwen2_5_vl(text: dict[str, Any], ids: dict[str, Any]) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "fullatt_block_indexes": [1],
        "window_size": 56,
    }  # fmt: skip
    text = {**text, "rope_parameters": rope, "bos_token_id": None, "eos_token_id": None}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    return Qwen2_5_VLForConditionalGeneration(config)


def _qwen2_vl(text: dict[str, Any], ids: dict[str, Any]) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vision = {
        "depth": 2, "embed_dim": 64, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 4, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    text = {**text, "rope_parameters": rope, "bos_token_id": None, "eos_token_id": None}
    config = Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    return Qwen2VLForConditionalGeneration(config)


_HALF = (0.5, 0.5, 0.5)
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

_QWEN3_VL = _Family("qwen3_vl", QWEN3_VL_TEMPLATE, 16, _HALF, _HALF, Qwen3VLProcessor, Qwen3VLVideoProcessor, _qwen3_vl)
_QWEN2_5_VL = _Family(
    "qwen2_5_vl", QWEN2_VL_TEMPLATE, 14, _CLIP_MEAN, _CLIP_STD, Qwen2_5_VLProcessor, Qwen2VLVideoProcessor, _qwen2_5_vl
)
_QWEN2_VL = _Family(
    "qwen2_vl", QWEN2_VL_TEMPLATE, 14, _CLIP_MEAN, _CLIP_STD, Qwen2VLProcessor, Qwen2VLVideoProcessor, _qwen2_vl
)
