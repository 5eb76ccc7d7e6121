"""Text in, rows of ids; outputs back into embeddings, labels, spans."""
