"""Fine-tune and evaluate Qwen3-VL with Online Dynamic Batching, and prove that the stack is right."""

__version__ = "0.1.0"
