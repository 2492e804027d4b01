"""Converters for scikit-learn's estimators, one file for each family. The registry imports all of them for the first such model."""
