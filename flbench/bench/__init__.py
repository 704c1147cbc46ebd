"""The cost of each engine beside a bare PyTorch loop and the limits of the device."""
