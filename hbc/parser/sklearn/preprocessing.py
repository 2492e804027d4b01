"""sklearn.preprocessing."""
from hbc.parser.registry import converts
