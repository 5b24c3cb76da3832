"""What models, KV formats and GPUs are, as facts: nothing here computes a prediction."""
