"""What users import: sequences, spaces, study specs, trainers and the client."""
