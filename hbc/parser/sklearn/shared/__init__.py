"""What several converters of scikit-learn's estimators share. No converter is registered here."""
