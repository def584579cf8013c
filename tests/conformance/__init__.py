"""What PyTorch's own tests assert of checkpointing, asserted of Retape. See README.md."""
