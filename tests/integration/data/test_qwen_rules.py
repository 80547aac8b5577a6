"""Qwen's own figures: its image arithmetic, and its real tokenizer where a package that carries it is installed."""

from __future__ import annotations

import base64
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from support.sample_records import LOOK_ALIKES, NEARLY, read_image, records
from transformers import Qwen3VLProcessor

from odb_example.data.images import open_image
from odb_example.data.records import Record
from odb_example.data.samples import SampleMaker
from odb_example.data.vision import GridVision
from odb_example.models.loading import cap_images, load_processor
from odb_example.models.miniature import qwen_tokenizer

pytestmark = pytest.mark.integration

# (height, width): grid at the checkpoint's cap of 16,777,216 pixels, and at 589,824.
GRIDS = {
    (1, 1): ((16, 16), (16, 16)), (32, 32): ((16, 16), (16, 16)), (255, 255): ((16, 16), (16, 16)),
    (240, 320): ((16, 20), (16, 20)), (375, 500): ((24, 32), (24, 32)), (480, 640): ((30, 40), (30, 40)),
    (768, 768): ((48, 48), (48, 48)), (784, 784): ((48, 48), (48, 48)), (720, 1280): ((44, 80), (36, 64)),
    (720, 1281): ((44, 80), (34, 64)), (1080, 1920): ((68, 120), (36, 64)), (4032, 3024): ((252, 188), (54, 40)),
    (3, 300): ((2, 160), (2, 160)), (64, 2048): ((4, 128), (4, 128)), (32, 6400): ((2, 400), (2, 400)),
}  # fmt: skip


def qwen3_vl_sizes(checkpoint: Path) -> Any:
    """The tiny checkpoint's processor with the sizes of the 2B model."""
    processor = load_processor(str(checkpoint), image_max_pixels=0)
    processor.image_processor.size = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
    return processor


@pytest.mark.parametrize("size", GRIDS)
def test_visual_tokens_follow_qwen3_vls_rule(tiny_checkpoint: Path, size: tuple[int, int]) -> None:
    processor = qwen3_vl_sizes(tiny_checkpoint)
    own, capped = (grid[0] * grid[1] // 4 for grid in GRIDS[size])
    assert GridVision(processor).tokens([size]) == [own]
    cap_images(processor.image_processor, 589_824)
    assert GridVision(processor).tokens([size]) == [capped]


def test_a_ratio_just_above_the_limit_is_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="ratio"):
        GridVision(qwen3_vl_sizes(tiny_checkpoint)).tokens([(32, 6401)])


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merge list behind a rank table: for each token, the pair it is made of by the merges ranked before it."""
    merges: list[tuple[bytes, bytes]] = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            pairs = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            if pairs[best] >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _byte_characters() -> dict[int, str]:
    """Byte-level BPE's printable stand-ins (GPT-2): printable bytes stand for themselves, the others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


@cache
def real_tokenizer() -> Any:
    """Qwen's 151,643 ranks with its added tokens."""
    ranks: dict[bytes, int] = {}
    # Found, not imported: without its dependencies the package cannot be.
    spec = find_spec("dashscope")
    assert spec is not None
    assert spec.origin is not None
    for line in (Path(spec.origin).parent / "resources" / "qwen.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    characters = _byte_characters()

    def spelled(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    merges = [(spelled(left), spelled(right)) for left, right in _merges(ranks)]
    return qwen_tokenizer({spelled(token): rank for token, rank in ranks.items()}, merges)


needs_ranks = pytest.mark.skipif(
    find_spec("dashscope") is None,
    reason="Qwen's ranks come from the package dashscope: pip install --no-deps dashscope==2.0.2",
)


@pytest.fixture(scope="module")
def real(tiny_checkpoint: Path) -> Qwen3VLProcessor:
    tiny = load_processor(str(tiny_checkpoint), image_max_pixels=65_536)
    return Qwen3VLProcessor(
        image_processor=tiny.image_processor, tokenizer=real_tokenizer(), video_processor=tiny.video_processor,
        chat_template=tiny.chat_template,
    )  # fmt: skip


@needs_ranks
def test_the_rebuilt_tokenizer_has_qwens_ids(real: Qwen3VLProcessor) -> None:
    tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
    assert real.tokenizer.convert_tokens_to_ids(list(tokens)) == [151643, 151644, 151645, 151652, 151653, 151655]
    assert real.tokenizer.convert_tokens_to_ids([*"ABCDEFGHI"]) == [*range(32, 41)]
    assert real.tokenizer("Hello world\u4f60\u597d")["input_ids"] == [9707, 1879, 108386]


@pytest.fixture(scope="module")
def real_maker(real: Qwen3VLProcessor) -> SampleMaker:
    return SampleMaker(real, max_length=10**5, backend="qwen_vl")


@needs_ranks
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(record=records())
def test_samples_with_qwens_real_tokenizer_equal_the_processors(
    real: Qwen3VLProcessor, real_maker: SampleMaker, record: Record
) -> None:
    chat = [
        {
            "role": "user" if turn.role == "human" else "assistant",
            "content": _content(turn.value, turn.role == "human" and bool(record.images)),
        }
        for turn in record.conversations
    ]
    text = real.apply_chat_template(chat, tokenize=False)
    images = [open_image(read_image(path)) for path in record.images]
    expected = real(text=[text], images=images or None, return_tensors="pt")
    sample = real_maker.finish(record, read_image)
    assert torch.equal(sample["input_ids"], expected["input_ids"][0])
    assert torch.equal(sample["mm_token_type_ids"], expected["mm_token_type_ids"][0])


def _content(text: str, with_images: bool) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = []
    for position, piece in enumerate(text.split("<image>") if with_images else [text]):
        parts += [{"type": "image"}] * bool(position) + [{"type": "text", "text": piece}]
    return parts


@needs_ranks
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(record=records(spelled=(*LOOK_ALIKES, *NEARLY)))
def test_text_stays_text_with_qwens_real_tokenizer(real_maker: SampleMaker, record: Record) -> None:
    ids = real_maker.finish(record, read_image)["input_ids"]
    assert int((ids == 151644).sum()) == int((ids == 151645).sum()) == len(record.conversations)
    assert int((ids == 151652).sum()) == int((ids == 151653).sum()) == len(record.images)
    assert not (ids == 151656).any()
