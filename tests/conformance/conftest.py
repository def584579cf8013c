"""One thread per process: gradients are compared bitwise."""

import torch

torch.set_num_threads(1)
