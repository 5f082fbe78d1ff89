"""Makes a tiny model that a real engine can serve with random weights: nothing is downloaded.

    ENGINE_PYTHON scripts/make_tiny_model.py FOLDER [--hidden 64] [--layers 2] ...

Serve it with `--load-format dummy`. It is a GPT-2, whose learned positions need no kernel that a
CPU lacks. Every token is visible ASCII text, so that an engine streams one chunk for each, and the
special tokens come last, because weights near zero like to say token 0. The same arguments make
the same files. Needs the package `tokenizers`, which every engine brings along.
"""

import argparse
import json
import string
from pathlib import Path
from typing import Any

SPECIAL = ("<unk>", "<s>", "</s>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer(vocabulary: int) -> dict[str, Any]:
    """Return a tokenizer of single characters and made-up words, *vocabulary* entries in all."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [*string.printable[:95], "\n"]
    words = (f" w{number}" for number in range(vocabulary))
    plain = letters + [next(words) for _ in range(vocabulary - len(letters) - len(SPECIAL))]
    ids = {text: number for number, text in enumerate([*plain, *SPECIAL])}
    made = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[0]))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(list(SPECIAL))
    data: dict[str, Any] = json.loads(made.to_str())
    return data


def config(options: argparse.Namespace) -> dict[str, Any]:
    """Return the model's config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": options.hidden,
        "n_layer": options.layers,
        "n_head": options.heads,
        "n_inner": 2 * options.hidden,
        "n_positions": options.context,
        "n_ctx": options.context,
        "vocab_size": options.vocabulary,
        "bos_token_id": options.vocabulary - 2,
        "eos_token_id": options.vocabulary - 1,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "torch_dtype": "bfloat16",
    }


def files(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return what goes into the model's folder, by file name."""
    about = config(options)
    return {
        "config.json": about,
        "generation_config.json": {k: about[k] for k in ("bos_token_id", "eos_token_id")},
        "tokenizer.json": tokenizer(options.vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": SPECIAL[0],
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[2],
            "model_max_length": options.context,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, data in files(options).items():
        text = json.dumps(data, indent=1, sort_keys=True) + "\n"
        (options.folder / name).write_text(text, encoding="utf-8")
    print(options.folder)


if __name__ == "__main__":
    main()
