"""Functions that several converters of scikit-learn's estimators use. No converter is registered here."""
