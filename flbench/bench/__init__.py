"""The speed of engines beside a bare PyTorch loop, and beside the limits of the device."""
