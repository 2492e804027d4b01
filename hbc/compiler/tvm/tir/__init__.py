"""Expressions and vector statements of TIR, and the elementary functions made of them. Knows no graph and no operator."""
