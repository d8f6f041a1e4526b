"""Key tables of published weights: one file for each family of models, with the tables of every source."""
