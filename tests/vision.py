"""Small vision–language models with random weights, made on the spot: SmolVLM, LLaVA and Qwen2-VL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    SmolVLMConfig,
)

Family = Literal["smolvlm", "llava", "qwen2_vl"]
FAMILIES: tuple[Family, ...] = ("smolvlm", "llava", "qwen2_vl")
TEXTS = ["which color is most frequent? answer red", "what do you see? zoom", "answer green", "answer blue . black"]
# Each writes turns between two special tokens, and an image as its own processor expects it.
TURN = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ 'IMAGE' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = {
    "smolvlm": ["<image>", "<fake_token_around_image>", "<global-img>", "<video>", "<row_1_col_1>", "<row_1_col_2>",
                "<row_2_col_1>", "<row_2_col_2>"],
    "llava": ["<image>"],
    "qwen2_vl": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
}  # fmt: skip
WRITTEN = {"smolvlm": "<image>", "llava": "<image>\n", "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>"}
CONFIGS: dict[str, dict[str, Any]] = {
    "smolvlm": {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"longest_edge": 32},
        "max_image_size": {"longest_edge": 16},
        "do_image_splitting": False,
        "do_pad": True,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "llava": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 16},
        "crop_size": {"height": 16, "width": 16},
        "do_center_crop": True,
        "do_resize": True,
    },
    "qwen2_vl": {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 4,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 64, "longest_edge": 1024},
    },
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "smolvlm": {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
    "llava": {
        "processor_class": "LlavaProcessor",
        "patch_size": 4,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    },
    "qwen2_vl": {"processor_class": "Qwen2VLProcessor"},
}

RECIPES: dict[str, Family] = {"worlds/rasters-vision.yaml": "qwen2_vl"}  # with a model that tests do not fetch


def instead(recipe: str, place: Path) -> list[str]:
    """Overrides by which a recipe of `RECIPES` trains a small model of its family, written to `place`; else none."""
    if recipe not in RECIPES:
        return []
    return [f"policies.main.policy.language.model={vision_folder(place, RECIPES[recipe], context=2048)}"]


def vision_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the family's special tokens and a chat template that writes pictures."""
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>", *SPECIAL[family]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=2,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer=trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=special[1:],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TURN.replace("IMAGE", WRITTEN[family])
    return made


def _text(size: int, context: int) -> dict[str, Any]:
    return {
        "vocab_size": size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }


def _config(family: Family, tokenizer: Any, context: int) -> Any:
    ids, size = tokenizer.convert_tokens_to_ids, len(tokenizer)
    text = _text(size, context)
    if family == "smolvlm":
        vision = {
            "hidden_size": 24,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
        }
        return SmolVLMConfig(
            image_token_id=ids("<image>"),
            vision_config=vision,
            text_config={"model_type": "llama", **text},
            scale_factor=2,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
    if family == "llava":
        vision_config = CLIPVisionConfig(
            hidden_size=24,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=16,
            patch_size=4,
            projection_dim=24,
        )
        return LlavaConfig(
            vision_config=vision_config,
            text_config=LlamaConfig(**text),
            image_token_id=ids("<image>"),
            image_seq_length=16,
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
            tie_word_embeddings=False,
        )
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
    rotation = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    return Qwen2VLConfig(
        text_config={**text, "rope_parameters": rotation},
        vision_config={**vision, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )


def vision_folder(place: Path, family: Family, *, context: int = 512, splits: bool = False, scale: float = 3.0) -> Path:
    """Write a model with its tokenizer and processor, and return its folder.

    Args:
        splits: whether large images are cut into parts (SmolVLM).
        scale: of the weights. Higher: pictures and texts change the logits more.
    """
    tokenizer = vision_tokenizer(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(_config(family, tokenizer, context)).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(scale)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    images = CONFIGS[family] | ({"do_image_splitting": True} if splits else {})
    (place / "preprocessor_config.json").write_text(json.dumps(images))
    (place / "processor_config.json").write_text(json.dumps(PROCESSORS[family]))
    return place


def some_image(seed: int, height: int = 12, width: int = 12) -> np.ndarray:
    """uint8 (height, width, 3): random colors in blocks."""
    draw = np.random.default_rng(seed)
    colors = draw.integers(0, 256, size=(-(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    return colors.repeat(4, 0).repeat(4, 1)[:height, :width]
