"""`retape train`: a training loop that can be killed at any moment, the twin of train_gpt in C++."""
