"""Key tables of published weights: one file per model family, with the tables of every source."""
