"""Libraries that stand alone: a model's methods as C functions, with its tables, for programs without Python, hbc and TVM's runtime."""
