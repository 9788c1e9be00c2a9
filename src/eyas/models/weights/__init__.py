"""Reading a model's weights: safetensors strictly, GGUF by conversion to an ordinary Hugging Face folder."""
