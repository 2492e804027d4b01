"""Compiled code for operators that stay on the host: text, and iterations."""
