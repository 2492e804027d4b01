"""What `benchmarks/gpu.py` needs: the models to carry (pack.py), and the card they run on, or the emulator in its place (devices.py)."""
