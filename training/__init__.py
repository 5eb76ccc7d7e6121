"""How the small HunyuanOCR that this repository ships was made: pages, tokenizer, training, figures. Not installed."""
