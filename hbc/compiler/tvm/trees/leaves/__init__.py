"""What is done with the leaves that rows reach: their values are added, as integers or as they stand, or their numbers are stored."""
