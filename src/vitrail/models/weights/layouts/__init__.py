"""Key tables of published weights: one file per library, and one for the authors' own files."""
