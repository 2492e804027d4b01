"""The version of hbc."""

VERSION = "0.1.0"
