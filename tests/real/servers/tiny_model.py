"""Makes a llama model with random weights that is small enough to be made for every run (under a megabyte).

It speaks nonsense, yet everything around it is real: a vocabulary, a chat template, tokens, logits. Runs in
the environment of the servers (gguf, numpy), not in Weir's.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

EMBEDDING, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 64, 2, 4, 128, 8192
SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
WORDS = (
    "the water river stone flow over under gate level high low slow fast measure every stream bank dam "
    "sluice mill wheel fish rain summer winter bridge boat rope iron wood clay moss reed heron otter ferry "
    "and of to in is was with from near where when"
).split()
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _pieces() -> Iterator[str]:
    """Yield the ordinary tokens. Every beginning of a word is one, or merges would never reach the word."""
    yield "▁"
    yield from (character for character in string.printable[:94])
    for word in WORDS:
        yield from ("▁" + word[:length] for length in range(1, len(word) + 1))


def _vocabulary(writer: gguf.GGUFWriter) -> int:
    kinds = gguf.TokenType
    rows = [(text, kinds.CONTROL if number else kinds.UNKNOWN, 0.0) for number, text in enumerate(SPECIAL)]
    rows += [(f"<0x{byte:02X}>", kinds.BYTE, 0.0) for byte in range(256)]
    for rank, text in enumerate(dict.fromkeys(_pieces())):
        rows.append((text, kinds.NORMAL, -float(rank)))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text.encode() for text, _, _ in rows])
    writer.add_token_types([kind for _, kind, _ in rows])
    writer.add_token_scores([score for _, _, score in rows])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_chat_template(TEMPLATE)
    writer.add_vocab_size(len(rows))
    return len(rows)


def _weights(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    chance = np.random.default_rng(1)

    def drawn(*shape: int, spread: float = 0.05) -> np.ndarray:
        return (chance.standard_normal(shape) * spread).astype(np.float32)

    ones = np.ones(EMBEDDING, np.float32)
    output = drawn(vocabulary, EMBEDDING, spread=0.25)
    # Words shall be likely, loose bytes and the end of the text rare.
    output[: len(SPECIAL) + 256] *= 0.05
    writer.add_tensor("token_embd.weight", drawn(vocabulary, EMBEDDING, spread=0.5))
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", drawn(EMBEDDING, EMBEDDING))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", drawn(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", drawn(EMBEDDING, FEED_FORWARD))


def make(path: Path) -> None:
    """Write the model to `path`: the same bytes every time."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    _weights(writer, _vocabulary(writer))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
