"""Write the golden outputs that ship for the demo model: python tools/make_golden.py MODEL_FOLDER NAME.

Needs torch and transformers. The model runs in fp32, one text at a time, so that no padding is involved; pooling and
normalisation are written out here, independent of this package's graphs.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import torch
import transformers

from alula.families import describe, open_checkpoint
from alula.verify import golden, texts_for

TEXTS = (
    *(text for (text,) in texts_for("embeddings")),
    "glacier " * 300,  # longer than the model takes
    "",
    "rain",
    "What time is it?",
    "The cat sat on the mat.",
    "北京是中华人民共和国的首都。",
    "def mean(xs): return sum(xs) / len(xs)",
    "The stock market fell sharply on Monday.",
)


def main(folder: Path, name: str) -> None:
    """Run the model on every text and save what it answers."""
    checkpoint = open_checkpoint(str(folder))
    spec = describe(checkpoint, task="embeddings")
    if spec.pooling != "mean" or not spec.normalize:
        raise SystemExit(f"{name} pools by {spec.pooling!r}; only a normalised mean is written out here")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [row_of(text, tokenizer, model, spec.max_length) for text in TEXTS]
    made_with = {
        "digest": spec.digest,
        "pad_id": str(spec.pad_id),
        "inputs": " ".join(tensor.name for tensor in spec.parts[0].inputs),
        "weights": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    path = golden.FOLDER / f"{name}.npz"
    path.parent.mkdir(exist_ok=True)
    golden.save(path, made_with, rows)
    sys.stdout.write(f"{path}: {len(rows)} texts of {min(len(r.ids) for r in rows)} to ")
    sys.stdout.write(f"{max(len(r.ids) for r in rows)} tokens, {path.stat().st_size} bytes\n")


@torch.no_grad()
def row_of(
    text: str,
    tokenizer: transformers.PreTrainedTokenizerBase,
    model: transformers.PreTrainedModel,
    max_length: int,
) -> golden.Row:
    """One text's tokens and its normalised mean."""
    encoded = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
    mean = model(**encoded).last_hidden_state[0].mean(dim=0)
    embedding = torch.nn.functional.normalize(mean, dim=0)
    return golden.Row(text, tuple(encoded["input_ids"][0].tolist()), embedding.numpy())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
