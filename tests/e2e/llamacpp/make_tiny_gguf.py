"""Write a tiny Llama model with random weights: `python make_tiny_gguf.py FILE`.

Its text is nonsense, and always the same nonsense (seeded). Two properties make it fit for tests:
- it writes only the letters a to z and spaces, so that no answer holds half a UTF-8 character;
- it never ends by itself: an answer has exactly `max_tokens` tokens.

Both come from one trick. Channel 0 of the residual stream is the same for every token and no layer writes to it, so its
column in the output matrix is a constant added to each token's logit: strongly negative for what must not be written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

HIDDEN = 64
LAYERS = 2
HEADS = 2
FEED_FORWARD = 128
CONTEXT = 32_768
SEED = 20_240_607

_SPECIAL = ["<unk>", "<s>", "</s>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_TEXT = ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]  # the first is SentencePiece's space
_FORBIDDEN_LOGIT = -30.0

# {role}: content, one message a line
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

Matrix = npt.NDArray[np.float32]


def write(file: Path, layers: int = LAYERS) -> Path:
    """Write the model to `file` and return it. The same bytes each time. More layers make it slower."""
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _vocabulary(writer)
    for name, tensor in _tensors(layers).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = _SPECIAL + _BYTES + _TEXT
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * len(_BYTES) + [kinds.NORMAL] * len(_TEXT)
    )
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensors(layers: int) -> dict[str, Matrix]:
    random = np.random.default_rng(SEED)
    vocabulary = len(_SPECIAL) + len(_BYTES) + len(_TEXT)

    def matrix(rows: int, columns: int) -> Matrix:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def ones() -> Matrix:
        return np.ones(HIDDEN, dtype=np.float32)

    embedding = matrix(vocabulary, HIDDEN) * np.float32(8)
    embedding[:, 0] = 4.0
    output = matrix(vocabulary, HIDDEN) * np.float32(8)
    output[:, 0] = 0.0
    output[: len(_SPECIAL) + len(_BYTES), :] = 0.0
    output[: len(_SPECIAL) + len(_BYTES), 0] = _FORBIDDEN_LOGIT
    tensors: dict[str, Matrix] = {
        "token_embd.weight": embedding,
        "output_norm.weight": ones(),
        "output.weight": output,
    }
    for layer in range(layers):
        block = {
            "attn_norm": ones(),
            "attn_q": matrix(HIDDEN, HIDDEN),
            "attn_k": matrix(HIDDEN, HIDDEN),
            "attn_v": matrix(HIDDEN, HIDDEN),
            "attn_output": matrix(HIDDEN, HIDDEN),
            "ffn_norm": ones(),
            "ffn_gate": matrix(FEED_FORWARD, HIDDEN),
            "ffn_up": matrix(FEED_FORWARD, HIDDEN),
            "ffn_down": matrix(HIDDEN, FEED_FORWARD),
        }
        block["attn_output"][0, :] = 0.0
        block["ffn_down"][0, :] = 0.0
        tensors.update({f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()})
    return tensors


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_tiny_gguf.py FILE")
    print(f"{write(Path(sys.argv[1]))}: {Path(sys.argv[1]).stat().st_size:,} bytes")
