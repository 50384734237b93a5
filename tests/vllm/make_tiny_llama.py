"""Write a tiny Llama with random weights as vLLM reads it: `python make_tiny_llama.py FOLDER`. Nothing is downloaded.

A byte is a token, so a prompt of 64 ASCII letters has 64 tokens. What it writes is nonsense, the same nonsense each
time (seeded), and a letter a to z or a space for each token: it never ends by itself, so an answer has exactly
`max_tokens` tokens, and no chunk of a stream is half a character.

How: channel 0 of the residual stream is the same for every token and no layer writes to it, so its column in the output
matrix is a constant that is added to each token's logit: strongly negative for what must not be written.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HIDDEN = 64
LAYERS = 2
HEADS = 2
FEED_FORWARD = 128
CONTEXT = 8_192
RANK = 8  # of adapters
SEED = 20_261_129

_SPECIAL = ["<unk>", "<s>", "</s>"]
_WRITTEN = b" abcdefghijklmnopqrstuvwxyz"
_VOCABULARY = len(_SPECIAL) + 256
_FORBIDDEN_LOGIT = -30.0

# {role}: content, one message a line
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

Matrix = npt.NDArray[np.float32]


def write(folder: Path, layers: int = LAYERS) -> Path:
    """Write the model to `folder` and return it. The same bytes each time. More layers make it slower."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "config.json": _config(layers),
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": _tokenizer_config(),
    }
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_safetensors(_weights(layers)))
    return folder


def write_adapter(folder: Path, seed: int) -> Path:
    """Write a LoRA adapter for the model to `folder` and return it. Another seed gives another text."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = ["q_proj", "v_proj"]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": parts,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    random = np.random.default_rng(seed)
    weights: dict[str, Matrix] = {}
    for layer in range(LAYERS):
        for part in parts:
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            for side, shape in (("A", (RANK, HIDDEN)), ("B", (HIDDEN, RANK))):
                weights[f"{name}.lora_{side}.weight"] = (random.standard_normal(shape) / 8).astype(np.float32)
    (folder / "adapter_model.safetensors").write_bytes(_safetensors(weights))
    return folder


def _config(layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _tokenizer() -> dict[str, Any]:
    """Byte-level BPE without merges: a token for each byte."""
    letters = _letters()
    vocabulary = {token: number for number, token in enumerate(_SPECIAL)}
    vocabulary |= {letters[byte]: len(_SPECIAL) + byte for byte in range(256)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **flags} for number, token in enumerate(_SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _letters() -> list[str]:
    """The printable character by which byte-level BPE writes each byte: itself, or the next one from U+0100 on."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in itself]
    return [chr(byte) if byte in itself else chr(0x100 + others.index(byte)) for byte in range(256)]


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }


def _weights(layers: int) -> dict[str, Matrix]:
    random = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int) -> Matrix:
        drawn: Matrix = (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        return drawn

    def ones() -> Matrix:
        return np.ones(HIDDEN, dtype=np.float32)

    embedding = matrix(_VOCABULARY, HIDDEN) * np.float32(8)
    embedding[:, 0] = 4.0
    output = matrix(_VOCABULARY, HIDDEN) * np.float32(8)
    written = [len(_SPECIAL) + byte for byte in _WRITTEN]
    forbidden = [token for token in range(_VOCABULARY) if token not in written]
    output[:, 0] = 0.0
    output[forbidden, :] = 0.0
    output[forbidden, 0] = _FORBIDDEN_LOGIT
    weights: dict[str, Matrix] = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": ones(),
        "lm_head.weight": output,
    }
    for layer in range(layers):
        block = {
            "input_layernorm": ones(),
            "self_attn.q_proj": matrix(HIDDEN, HIDDEN),
            "self_attn.k_proj": matrix(HIDDEN, HIDDEN),
            "self_attn.v_proj": matrix(HIDDEN, HIDDEN),
            "self_attn.o_proj": matrix(HIDDEN, HIDDEN),
            "post_attention_layernorm": ones(),
            "mlp.gate_proj": matrix(FEED_FORWARD, HIDDEN),
            "mlp.up_proj": matrix(FEED_FORWARD, HIDDEN),
            "mlp.down_proj": matrix(HIDDEN, FEED_FORWARD),
        }
        block["self_attn.o_proj"][0, :] = 0.0
        block["mlp.down_proj"][0, :] = 0.0
        weights.update({f"model.layers.{layer}.{name}.weight": tensor for name, tensor in block.items()})
    return weights


def _safetensors(weights: dict[str, Matrix]) -> bytes:
    """The format: length of a JSON header, the header (type, shape and place of each tensor), the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in weights.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.astype("<f4").tobytes() for tensor in weights.values())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_tiny_llama.py FOLDER")
    print(write(Path(sys.argv[1])))
